"""Arms of serial bus motors: SO-100, SO-101, Koch, two SO arms, LeKiwi."""
