// SPDX-License-Identifier: Apache-2.0

package modbus

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/edgebus/edgebus/edge/discovery/handlers/network"
)

// The places where SunSpec's registers begin, what is written there, and how many models are listed.
var sunspecBases = []uint16{40000, 50000, 0}

const (
	sunspecMark = "SunS"
	sunspecEnd  = 0xFFFF
	maxModels   = 100
)

// commonTexts are the texts of SunSpec's common model, by their first register in it, and how many registers they have.
var commonTexts = []struct {
	property        string
	first, quantity uint16
}{{"SUNSPEC_MANUFACTURER", 0, 16}, {"SUNSPEC_MODEL", 16, 16}, {"SUNSPEC_VERSION", 40, 8}, {"SUNSPEC_SERIAL_NUMBER", 48, 16}}

// sunspecKinds are what a device is by the numbers of its models: the first that it has.
var sunspecKinds = []struct {
	kind   string
	models []int
}{{"inverter", []int{101, 102, 103, 111, 112, 113}}, {"meter", []int{201, 202, 203, 204, 211, 212, 213, 214}}, {"battery", []int{802}}}

// sunspec adds what a unit says of itself by SunSpec. A unit that doesn't speak it has SUNSPEC_MODELS empty.
func (c *unitConn) sunspec(ctx context.Context, unit byte, p map[string]string) error {
	p["SUNSPEC_MODELS"], p["SUNSPEC_KIND"] = "", ""
	for _, text := range commonTexts {
		p[text.property] = ""
	}
	for _, base := range sunspecBases {
		mark, err := c.registers(ctx, unit, base, 2)
		switch {
		case errors.As(err, new(exception)):
			continue
		case err != nil:
			return err
		case string(mark) == sunspecMark:
			return c.models(ctx, unit, int(base)+2, p)
		}
	}
	return nil
}

// models lists the models from an address on, and reads the texts of the common one.
func (c *unitConn) models(ctx context.Context, unit byte, address int, p map[string]string) error {
	var numbers []int
	for len(numbers) < maxModels && address < 65534 {
		head, err := c.registers(ctx, unit, uint16(address), 2)
		if errors.As(err, new(exception)) {
			break
		}
		if err != nil {
			return err
		}
		number, length := int(binary.BigEndian.Uint16(head)), int(binary.BigEndian.Uint16(head[2:]))
		if number == sunspecEnd {
			break
		}
		if numbers = append(numbers, number); number == 1 {
			if err := c.common(ctx, unit, address+2, p); err != nil {
				return err
			}
		}
		address += 2 + length
	}
	texts := make([]string, len(numbers))
	for i, n := range numbers {
		texts[i] = strconv.Itoa(n)
	}
	p["SUNSPEC_MODELS"] = strings.Join(texts, ",")
	for _, k := range sunspecKinds {
		if slices.ContainsFunc(numbers, func(n int) bool { return slices.Contains(k.models, n) }) {
			p["SUNSPEC_KIND"] = k.kind
			break
		}
	}
	return nil
}

func (c *unitConn) common(ctx context.Context, unit byte, address int, p map[string]string) error {
	for _, text := range commonTexts {
		b, err := c.registers(ctx, unit, uint16(address)+text.first, text.quantity)
		if errors.As(err, new(exception)) {
			continue
		}
		if err != nil {
			return err
		}
		p[text.property] = network.CleanText(strings.TrimRight(string(b), "\x00 "), 255)
	}
	return nil
}

// registers reads holding registers.
func (c *unitConn) registers(ctx context.Context, unit byte, address, quantity uint16) ([]byte, error) {
	pdu := binary.BigEndian.AppendUint16([]byte{3}, address)
	answer, err := c.request(ctx, unit, binary.BigEndian.AppendUint16(pdu, quantity))
	if err != nil {
		return nil, err
	}
	if len(answer) != 2+2*int(quantity) || int(answer[1]) != 2*int(quantity) {
		return nil, errMalformed
	}
	return answer[2:], nil
}
