"""Motor models and their control tables: addresses, sizes, sign encodings, baud codes.

Register names are LeRobot's. Addresses come from the vendors' control tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from proctor.errors import UsageError, did_you_mean
from proctor.robots.base import Unit


class BusProtocol(Enum):
    """Packet format on the wire; the values are those of ``GuardTarget.protocol``."""

    FEETECH = "feetech"
    """Feetech protocol 0: STS and SMS motors, little-endian words."""
    FEETECH_SCS = "feetech-scs"
    """Feetech protocol 1: SCS motors, big-endian words, no sync read."""
    DYNAMIXEL = "dynamixel"
    """Dynamixel protocol 2.0."""


class SignEncoding(Enum):
    """How a register stores negative values."""

    UNSIGNED = "unsigned"
    SIGN_MAGNITUDE = "sign and magnitude"
    TWOS_COMPLEMENT = "two's complement"


@dataclass(frozen=True)
class Register:
    """One register of a control table."""

    name: str
    address: int
    size: int
    """Bytes: 1, 2 or 4."""
    encoding: SignEncoding = SignEncoding.UNSIGNED
    sign_bit: int = 0
    """Index of the sign bit of a SIGN_MAGNITUDE register."""

    def encode(self, value: int) -> int:
        """Return the unsigned number that stores ``value``."""
        if self.encoding is SignEncoding.SIGN_MAGNITUDE:
            return encode_sign_magnitude(value, self.sign_bit, self.name)
        if self.encoding is SignEncoding.TWOS_COMPLEMENT:
            return encode_twos_complement(value, self.size, self.name)
        if not 0 <= value < 1 << (8 * self.size):
            raise out_of_range(self.name, value, 0, (1 << (8 * self.size)) - 1)
        return value

    def decode(self, stored: int) -> int:
        """Return the value of the unsigned number ``stored``."""
        if self.encoding is SignEncoding.SIGN_MAGNITUDE:
            return decode_sign_magnitude(stored, self.sign_bit)
        if self.encoding is SignEncoding.TWOS_COMPLEMENT:
            return decode_twos_complement(stored, self.size)
        return stored


def encode_sign_magnitude(value: int, sign_bit: int, name: str = "the register") -> int:
    """Return ``value`` with its sign in bit ``sign_bit`` and its magnitude in the bits below."""
    most = (1 << sign_bit) - 1
    if not -most <= value <= most:
        raise out_of_range(name, value, -most, most)
    return value if value >= 0 else (1 << sign_bit) | -value


def decode_sign_magnitude(stored: int, sign_bit: int) -> int:
    """Return the value of a sign-magnitude number."""
    magnitude = stored & ((1 << sign_bit) - 1)
    return -magnitude if stored >> sign_bit & 1 else magnitude


def encode_twos_complement(value: int, size: int, name: str = "the register") -> int:
    """Return ``value`` as the two's complement of ``size`` bytes."""
    half = 1 << (8 * size - 1)
    if not -half <= value < half:
        raise out_of_range(name, value, -half, half - 1)
    return value % (2 * half)


def decode_twos_complement(stored: int, size: int) -> int:
    """Return the value of a two's complement of ``size`` bytes."""
    return stored - (1 << (8 * size)) if stored >> (8 * size - 1) & 1 else stored


def out_of_range(name: str, value: int, lowest: int, highest: int) -> UsageError:
    """Return the error for a value that a register cannot hold."""
    return UsageError(
        f"{name} cannot hold {value} (lowest {lowest}, highest {highest})",
        code="robot.value-out-of-range",
    )


ControlTable = Mapping[str, Register]


def _signed_magnitude(addresses: dict[str, tuple[int, int]], bits: dict[str, int]) -> ControlTable:
    return {
        name: Register(name, address, size, SignEncoding.SIGN_MAGNITUDE, bits[name])
        if name in bits
        else Register(name, address, size)
        for name, (address, size) in addresses.items()
    }


_STS_ADDRESSES = {
    "Firmware_Major_Version": (0, 1),
    "Firmware_Minor_Version": (1, 1),
    "Model_Number": (3, 2),
    "ID": (5, 1),
    "Baud_Rate": (6, 1),
    "Return_Delay_Time": (7, 1),
    "Response_Status_Level": (8, 1),
    "Min_Position_Limit": (9, 2),
    "Max_Position_Limit": (11, 2),
    "Max_Temperature_Limit": (13, 1),
    "Max_Voltage_Limit": (14, 1),
    "Min_Voltage_Limit": (15, 1),
    "Max_Torque_Limit": (16, 2),
    "Phase": (18, 1),
    "Unloading_Condition": (19, 1),
    "LED_Alarm_Condition": (20, 1),
    "P_Coefficient": (21, 1),
    "D_Coefficient": (22, 1),
    "I_Coefficient": (23, 1),
    "Minimum_Startup_Force": (24, 2),
    "CW_Dead_Zone": (26, 1),
    "CCW_Dead_Zone": (27, 1),
    "Protection_Current": (28, 2),
    "Angular_Resolution": (30, 1),
    "Homing_Offset": (31, 2),
    "Operating_Mode": (33, 1),
    "Protective_Torque": (34, 1),
    "Protection_Time": (35, 1),
    "Overload_Torque": (36, 1),
    "Velocity_closed_loop_P_proportional_coefficient": (37, 1),
    "Over_Current_Protection_Time": (38, 1),
    "Velocity_closed_loop_I_integral_coefficient": (39, 1),
    "Torque_Enable": (40, 1),
    "Acceleration": (41, 1),
    "Goal_Position": (42, 2),
    "Goal_Time": (44, 2),
    "Goal_Velocity": (46, 2),
    "Torque_Limit": (48, 2),
    "Lock": (55, 1),
    "Present_Position": (56, 2),
    "Present_Velocity": (58, 2),
    "Present_Load": (60, 2),
    "Present_Voltage": (62, 1),
    "Present_Temperature": (63, 1),
    "Status": (65, 1),
    "Moving": (66, 1),
    "Present_Current": (69, 2),
    "Goal_Position_2": (71, 2),
    "Moving_Velocity": (80, 1),
    "DTs": (81, 1),
    "Velocity_Unit_factor": (82, 1),
    "Hts": (83, 1),
    "Maximum_Velocity_Limit": (84, 1),
    "Maximum_Acceleration": (85, 1),
    "Acceleration_Multiplier": (86, 1),
}
_SCS_ADDRESSES = {
    "Firmware_Major_Version": (0, 1),
    "Firmware_Minor_Version": (1, 1),
    "Model_Number": (3, 2),
    "ID": (5, 1),
    "Baud_Rate": (6, 1),
    "Return_Delay_Time": (7, 1),
    "Response_Status_Level": (8, 1),
    "Min_Position_Limit": (9, 2),
    "Max_Position_Limit": (11, 2),
    "Max_Temperature_Limit": (13, 1),
    "Max_Voltage_Limit": (14, 1),
    "Min_Voltage_Limit": (15, 1),
    "Max_Torque_Limit": (16, 2),
    "Phase": (18, 1),
    "Unloading_Condition": (19, 1),
    "LED_Alarm_Condition": (20, 1),
    "P_Coefficient": (21, 1),
    "D_Coefficient": (22, 1),
    "I_Coefficient": (23, 1),
    "Minimum_Startup_Force": (24, 2),
    "CW_Dead_Zone": (26, 1),
    "CCW_Dead_Zone": (27, 1),
    "Protective_Torque": (37, 1),
    "Protection_Time": (38, 1),
    "Torque_Enable": (40, 1),
    "Acceleration": (41, 1),
    "Goal_Position": (42, 2),
    "Running_Time": (44, 2),
    "Goal_Velocity": (46, 2),
    "Lock": (48, 1),
    "Present_Position": (56, 2),
    "Present_Velocity": (58, 2),
    "Present_Load": (60, 2),
    "Present_Voltage": (62, 1),
    "Present_Temperature": (63, 1),
    "Sync_Write_Flag": (64, 1),
    "Status": (65, 1),
    "Moving": (66, 1),
}
_X_ADDRESSES = {
    "Model_Number": (0, 2),
    "Model_Information": (2, 4),
    "Firmware_Version": (6, 1),
    "ID": (7, 1),
    "Baud_Rate": (8, 1),
    "Return_Delay_Time": (9, 1),
    "Drive_Mode": (10, 1),
    "Operating_Mode": (11, 1),
    "Secondary_ID": (12, 1),
    "Protocol_Type": (13, 1),
    "Homing_Offset": (20, 4),
    "Moving_Threshold": (24, 4),
    "Temperature_Limit": (31, 1),
    "Max_Voltage_Limit": (32, 2),
    "Min_Voltage_Limit": (34, 2),
    "PWM_Limit": (36, 2),
    "Current_Limit": (38, 2),
    "Acceleration_Limit": (40, 4),
    "Velocity_Limit": (44, 4),
    "Max_Position_Limit": (48, 4),
    "Min_Position_Limit": (52, 4),
    "Shutdown": (63, 1),
    "Torque_Enable": (64, 1),
    "LED": (65, 1),
    "Status_Return_Level": (68, 1),
    "Registered_Instruction": (69, 1),
    "Hardware_Error_Status": (70, 1),
    "Velocity_I_Gain": (76, 2),
    "Velocity_P_Gain": (78, 2),
    "Position_D_Gain": (80, 2),
    "Position_I_Gain": (82, 2),
    "Position_P_Gain": (84, 2),
    "Feedforward_2nd_Gain": (88, 2),
    "Feedforward_1st_Gain": (90, 2),
    "Bus_Watchdog": (98, 1),
    "Goal_PWM": (100, 2),
    "Goal_Current": (102, 2),
    "Goal_Velocity": (104, 4),
    "Profile_Acceleration": (108, 4),
    "Profile_Velocity": (112, 4),
    "Goal_Position": (116, 4),
    "Realtime_Tick": (120, 2),
    "Moving": (122, 1),
    "Moving_Status": (123, 1),
    "Present_PWM": (124, 2),
    "Present_Current": (126, 2),
    "Present_Velocity": (128, 4),
    "Present_Position": (132, 4),
    "Velocity_Trajectory": (136, 4),
    "Position_Trajectory": (140, 4),
    "Present_Input_Voltage": (144, 2),
    "Present_Temperature": (146, 1),
}
_FEETECH_SIGN_BITS = {
    "Present_Load": 10,
    "Homing_Offset": 11,
    "Goal_Position": 15,
    "Goal_Velocity": 15,
    "Present_Position": 15,
    "Present_Velocity": 15,
}
_X_TWOS_COMPLEMENT = {
    "Homing_Offset",
    "Goal_PWM",
    "Goal_Current",
    "Goal_Velocity",
    "Goal_Position",
    "Present_PWM",
    "Present_Current",
    "Present_Velocity",
    "Present_Position",
}

STS_TABLE: ControlTable = _signed_magnitude(_STS_ADDRESSES, _FEETECH_SIGN_BITS)
SCS_TABLE: ControlTable = _signed_magnitude(_SCS_ADDRESSES, {})
X_TABLE: ControlTable = {
    name: Register(
        name,
        address,
        size,
        SignEncoding.TWOS_COMPLEMENT if name in _X_TWOS_COMPLEMENT else SignEncoding.UNSIGNED,
    )
    for name, (address, size) in _X_ADDRESSES.items()
}

FEETECH_BAUD_CODES = {
    1_000_000: 0,
    500_000: 1,
    250_000: 2,
    128_000: 3,
    115_200: 4,
    57_600: 5,
    38_400: 6,
    19_200: 7,
}
DYNAMIXEL_BAUD_CODES = {
    9_600: 0,
    57_600: 1,
    115_200: 2,
    1_000_000: 3,
    2_000_000: 4,
    3_000_000: 5,
    4_000_000: 6,
}


@dataclass(frozen=True)
class MotorModel:
    """A type of motor."""

    name: str
    number: int
    """Content of the Model_Number register."""
    protocol: BusProtocol
    table: ControlTable
    resolution: int
    """Encoder ticks per turn."""

    @property
    def baud_codes(self) -> Mapping[int, int]:
        """Baud rate -> content of the Baud_Rate register, in the order of a search."""
        if self.protocol is BusProtocol.DYNAMIXEL:
            return DYNAMIXEL_BAUD_CODES
        return FEETECH_BAUD_CODES

    def register(self, name: str) -> Register:
        """Return a register by name."""
        if (register := self.table.get(name)) is None:
            raise UsageError(
                f"{self.name} has no register {name!r}{did_you_mean(name, self.table)}",
                code="robot.unknown-register",
            )
        return register


def _x(name: str, number: int) -> MotorModel:
    return MotorModel(name, number, BusProtocol.DYNAMIXEL, X_TABLE, 4096)


MODELS: Mapping[str, MotorModel] = {
    model.name: model
    for model in (
        MotorModel("sts3215", 777, BusProtocol.FEETECH, STS_TABLE, 4096),
        MotorModel("sts3250", 2825, BusProtocol.FEETECH, STS_TABLE, 4096),
        MotorModel("sm8512bl", 11272, BusProtocol.FEETECH, STS_TABLE, 4096),
        MotorModel("scs0009", 1284, BusProtocol.FEETECH_SCS, SCS_TABLE, 1024),
        _x("xl330-m077", 1190),
        _x("xl330-m288", 1200),
        _x("xl430-w250", 1060),
        _x("xm430-w350", 1020),
        _x("xm540-w270", 1120),
        _x("xc430-w150", 1070),
        _x("xh540-w150", 1110),
        _x("xc330-t288", 1220),
        _x("xc330-t181", 1210),
    )
}


@dataclass(frozen=True)
class Motor:
    """One motor of a bus."""

    id: int
    model_name: str
    unit: Unit
    """DEGREES, PERCENT or SIGNED_PERCENT: the unit of positions."""

    @property
    def model(self) -> MotorModel:
        """The motor's model."""
        return MODELS[self.model_name]


def model_by_number(number: int) -> str:
    """Return the name of the model with ``number``, or "model <number>" if it is not known."""
    names = [model.name for model in MODELS.values() if model.number == number]
    return names[0] if names else f"model {number}"
