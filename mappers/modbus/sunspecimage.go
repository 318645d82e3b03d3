// SPDX-License-Identifier: Apache-2.0

package modbus

import (
	"encoding/binary"
	"math"
)

// sunspecImage are the registers of a simulated inverter from its SunSpec base on: the models 1, 103 and 120, and 160 with two inputs.
func sunspecImage() []uint16 {
	image := []uint16{sunspecMark >> 16, sunspecMark & 0xFFFF}
	for _, m := range []struct {
		number, repeats int
		values          map[string]any
		parts           []map[string]any
	}{
		{1, 0, map[string]any{"Mn": "Edgebus", "Md": "simulated inverter", "Vr": "1.0", "SN": "SIM-0001", "DA": 1}, nil},
		{103, 0, map[string]any{
			"A": 1302, "AphA": 434, "AphB": 434, "AphC": 434, "A_SF": -2, "PhVphA": 2301, "PhVphB": 2304, "PhVphC": 2298, "V_SF": -1, "W": 2995, "W_SF": 0, "Hz": 5002, "Hz_SF": -2,
			"WH": 12345678, "WH_SF": 0, "DCW": 3102, "DCW_SF": 0, "TmpCab": 415, "Tmp_SF": -1, "St": 4,
		}, nil},
		{120, 0, map[string]any{"DERTyp": 4, "WRtg": 500, "WRtg_SF": 1}, nil},
		{160, 2, map[string]any{"DCA_SF": -2, "DCV_SF": -1, "DCW_SF": 0, "N": 2}, []map[string]any{
			{"ID": 1, "IDStr": "east", "DCA": 512, "DCV": 3500, "DCW": 1792}, {"ID": 2, "IDStr": "west", "DCA": 374, "DCV": 3502, "DCW": 1310},
		}},
	} {
		model, _ := sunspecBlock{number: m.number}.model()
		fixed, _ := parsePoints(model.points)
		registers := fillPoints(fixed, m.values)
		for _, values := range m.parts {
			part, _ := parsePoints(model.repeat)
			registers = append(registers, fillPoints(part, values)...)
		}
		image = append(append(image, uint16(m.number), uint16(len(registers))), registers...)
	}
	return append(image, 0xFFFF, 0)
}

// fillPoints makes registers of values, and of points that have none.
func fillPoints(list []sunspecPoint, values map[string]any) (registers []uint16) {
	for _, p := range list {
		b := make([]byte, max(8, 2*p.words))
		n, _ := p.absent()
		if v, ok := values[p.name].(int); ok {
			n = uint64(v)
		} else if p.typ == 'f' {
			n = uint64(math.Float32bits(float32(math.NaN())))
		}
		binary.BigEndian.PutUint64(b, n<<(64-16*min(p.words, 4)))
		if p.typ == 's' {
			text, _ := values[p.name].(string)
			clear(b)
			copy(b, text)
		}
		for i := range p.words {
			registers = append(registers, binary.BigEndian.Uint16(b[2*i:]))
		}
	}
	return registers
}
