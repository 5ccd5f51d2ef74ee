"""gym_hil: a Franka Panda picks a cube, the environment of LeRobot's HIL-SERL."""
