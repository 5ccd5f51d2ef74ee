"""What benchmarks on MuJoCo share."""
