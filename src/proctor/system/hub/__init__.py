"""The Hub: repositories, downloads and uploads."""
