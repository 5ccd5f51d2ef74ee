"""Emulated servos, a simulated SO-101 and its cell: robots without hardware.

Importing this package lets ``robots/buses/ports`` open the ports named "sim".
"""

from __future__ import annotations

from proctor.robots.buses.ports import SerialPort, register_port_opener


def _open(name: str, baudrate: int) -> SerialPort:
    from proctor.robots.emulation.cell import open_simulated_port

    return open_simulated_port(name, baudrate)


register_port_opener("sim", _open)
