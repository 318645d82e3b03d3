package modbus

import (
	"fmt"
	"slices"

	mb "github.com/simonvetter/modbus"
)

// What one request may ask for, by the standard.
const (
	maxRegisters = 125
	maxBits      = 2000
)

// group is what one request reads: registers next to each other, and the fields in them.
type group struct {
	table   table
	address uint16
	size    uint16
	fields  []*field
}

func (g group) String() string {
	return fmt.Sprintf("%s %d..%d", g.table, g.address, g.address+g.size-1)
}

// plan makes as few requests as it can of the fields. gap is how many registers may be read for nothing.
func plan(fields []*field, gap uint16) (list []group) {
	fields = slices.Clone(fields)
	slices.SortStableFunc(fields, func(a, b *field) int {
		if a.table != b.table {
			return int(a.table) - int(b.table)
		}
		return int(a.address) - int(b.address)
	})
	for _, f := range fields {
		if n := len(list); n > 0 && list[n-1].takes(f, gap) {
			g := &list[n-1]
			g.fields = append(g.fields, f)
			g.size = max(g.size, f.address+f.size()-g.address)
			continue
		}
		list = append(list, group{f.table, f.address, f.size(), []*field{f}})
	}
	return list
}

func (g group) takes(f *field, gap uint16) bool {
	most := maxRegisters
	if g.table.bits() {
		most = maxBits
	}
	end := int(f.address) + int(f.size()) - int(g.address)
	return f.table == g.table && int(f.address) <= int(g.address)+int(g.size)+int(gap) && end <= most
}

// split makes a group of each field.
func (g group) split() (list []group) {
	for _, f := range g.fields {
		list = append(list, group{f.table, f.address, f.size(), []*field{f}})
	}
	return list
}

func (g group) read(c *mb.ModbusClient) ([]uint16, error) {
	var bits []bool
	var err error
	switch g.table {
	case holding:
		return c.ReadRegisters(g.address, g.size, mb.HOLDING_REGISTER)
	case input:
		return c.ReadRegisters(g.address, g.size, mb.INPUT_REGISTER)
	case coil:
		bits, err = c.ReadCoils(g.address, g.size)
	case discrete:
		bits, err = c.ReadDiscreteInputs(g.address, g.size)
	}
	words := make([]uint16, len(bits))
	for i, b := range bits {
		if b {
			words[i] = 1
		}
	}
	return words, err
}
