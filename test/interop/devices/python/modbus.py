"""Modbus devices made with pymodbus: modbus.py tcp PORT, at the address HOST, or modbus.py rtu FILE [BAUD].

Units 1 and 7 have holding registers 0-9 (a register holds 100 times the unit, plus its address), a text of 4
registers at 20, a float of 32 bits in input registers 0 and 1, and coils 0-9. Other units don't answer.
"""
import os
import struct
import sys
import time

from pymodbus.datastore import ModbusSequentialDataBlock, ModbusServerContext, ModbusSlaveContext
from pymodbus.device import ModbusDeviceIdentification
from pymodbus.server import StartSerialServer, StartTcpServer
from pymodbus.transaction import ModbusRtuFramer


def unit(number):
    text = list(struct.unpack(">4H", b"pymodbus"))
    holding = [100 * number + i for i in range(10)] + [0] * 10 + text
    temperature = list(struct.unpack(">2H", struct.pack(">f", 20.5 + number)))
    return ModbusSlaveContext(
        hr=ModbusSequentialDataBlock(0, holding), ir=ModbusSequentialDataBlock(0, temperature),
        co=ModbusSequentialDataBlock(0, [False] * 10), di=ModbusSequentialDataBlock(0, [True] * 10), zero_mode=True)


class Framer(ModbusRtuFramer):
    """Forgets half a frame when the line has been silent, as the standard wants it; pymodbus would wait for its rest."""

    last = 0

    def processIncomingPacket(self, data, *rest, **named):
        if time.monotonic() - self.last > 0.1:
            self.resetFrame()
        self.last = time.monotonic()
        return super().processIncomingPacket(data, *rest, **named)


context = ModbusServerContext(slaves={n: unit(n) for n in (1, 7)}, single=False)
identity = ModbusDeviceIdentification()
identity.VendorName, identity.ProductCode, identity.MajorMinorRevision = "pymodbus", "PM", "3"
if sys.argv[1] == "tcp":
    StartTcpServer(context=context, identity=identity, address=(os.environ.get("HOST", "127.0.0.1"), int(sys.argv[2])), ignore_missing_slaves=True)
else:
    line = {"baudrate": int(sys.argv[3]) if sys.argv[3:] else 9600, "parity": "N"}
    StartSerialServer(context=context, identity=identity, framer=Framer, port=sys.argv[2], timeout=0.02,
                      ignore_missing_slaves=True, bytesize=8, stopbits=1, **line)
