"""Serial motor buses: Feetech (STS, SMS, SCS) and Dynamixel (X series)."""
