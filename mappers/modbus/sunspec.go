// SPDX-License-Identifier: Apache-2.0

package modbus

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/modbus/wire"
)

// sunspecReference is a visitor's config sunspec: inverter/W, 103/W, or 160/2/DCW, where 2 is which of the repeated parts.
type sunspecReference struct {
	text   string
	models []sunspecModel // that can have the point
	number int            // 0: any of the models'
	repeat int            // 0: none
	point  string
}

func parseSunspec(s configSettings, text string) (r sunspecReference, err error) {
	bad := func(format string, args ...any) error {
		return s.bad("sunspec", "%q "+format, append([]any{text}, args...)...)
	}
	parts := strings.Split(text, "/")
	if len(parts) < 2 || len(parts) > 3 {
		return r, bad("is no point of a SunSpec model, such as inverter/W, 103/W or 160/2/DCW")
	}
	r.text, r.point = text, parts[len(parts)-1]
	if len(parts) == 3 {
		if r.repeat, err = strconv.Atoi(parts[1]); err != nil || r.repeat < 1 || r.repeat > 1000 {
			return r, bad("has no number from 1 on between the slashes")
		}
	}
	r.number, _ = strconv.Atoi(parts[0])
	known := false
	for _, m := range sunspecModels {
		if !slices.Contains(m.numbers, r.number) && (m.kind == "" || !strings.EqualFold(m.kind, parts[0])) {
			continue
		}
		known = true
		text := m.points
		if r.repeat > 0 {
			text = m.repeat
		}
		list, _ := parsePoints(text)
		if _, ok := findPoint(list, r.point); ok {
			r.models = append(r.models, m)
		}
	}
	switch {
	case !known:
		return r, bad("is of a model that is not known: common, inverter, storage, mppt, meter, battery, or a number of 1, 101-103, 111-113, 120-124, 160, 201-204, 802")
	case len(r.models) == 0:
		return r, bad("is no point of the model")
	}
	return r, nil
}

// sunspecBlock is a model that a device has, and where.
type sunspecBlock struct {
	number  int
	address uint16 // of the first point
	length  uint16
}

// model finds out how a block is laid out.
func (b sunspecBlock) model() (m sunspecModel, ok bool) {
	i := slices.IndexFunc(sunspecModels, func(m sunspecModel) bool { return slices.Contains(m.numbers, b.number) })
	if i < 0 {
		return m, false
	}
	return sunspecModels[i], true
}

// config is the configuration for the point that a reference names, if the block has it.
func (b sunspecBlock) config(r sunspecReference) (p sunspecPoint, config map[string]string, ok bool) {
	m, known := b.model()
	if !known || r.number > 0 && r.number != b.number || !slices.ContainsFunc(r.models, func(x sunspecModel) bool { return slices.Contains(x.numbers, b.number) }) {
		return p, nil, false
	}
	fixed, size := parsePoints(m.points)
	list, at := fixed, int(b.address)
	if r.repeat > 0 {
		part, partSize := parsePoints(m.repeat)
		list, at = part, at+int(size)+(r.repeat-1)*int(partSize)
	}
	p, ok = findPoint(list, r.point)
	if !ok || at+int(p.offset)+int(p.words) > min(int(b.address)+int(b.length), 65536) {
		return p, nil, false
	}
	return p, p.config(fixed, b.address, uint16(at)), true
}

// The places where SunSpec's registers begin, and what is written there.
var sunspecBases = []uint16{40000, 50000, 0}

const sunspecMark = 0x53756e53 // SunS

const maxSunspecBlocks = 100

// readSunspec lists the models of a device: none, if it doesn't speak SunSpec. read reads holding registers; ok is false of those that the
// device refuses.
func readSunspec(read func(address, quantity uint16) (words []uint16, ok bool, err error)) (blocks []sunspecBlock, err error) {
	for _, base := range sunspecBases {
		words, ok, err := read(base, 2)
		if err != nil {
			return nil, err
		}
		if !ok || uint32(words[0])<<16|uint32(words[1]) != sunspecMark {
			continue
		}
		for address := int(base) + 2; address < 65534 && len(blocks) < maxSunspecBlocks; {
			head, ok, err := read(uint16(address), 2)
			if err != nil {
				return nil, err
			}
			if !ok || head[0] == 0xFFFF {
				break
			}
			blocks = append(blocks, sunspecBlock{int(head[0]), uint16(address + 2), head[1]})
			address += 2 + int(head[1])
		}
		return blocks, nil
	}
	return nil, nil
}

// parseSunspecField makes a field of a property that is a point of SunSpec: where it is shows when the device is asked.
func parseSunspecField(s configSettings, p mappers.Property, text string) (*registerField, error) {
	r, err := parseSunspec(s, text)
	if err != nil {
		return nil, err
	}
	if err := s.unknown(); err != nil {
		return nil, err
	}
	for _, m := range r.models { // what can be wrong with it is wrong wherever it is
		block := sunspecBlock{m.numbers[0], 0, 65535}
		reference := r
		reference.number = 0
		point, config, _ := block.config(reference)
		if p.Writable && !point.writable {
			return nil, s.bad("sunspec", "%s can't be written, but %s is ReadWrite", text, p.Name)
		}
		p.Config = config
		if _, err := parseField(p); err != nil {
			return nil, err
		}
	}
	return &registerField{name: p.Name, property: p, table: tableHolding, sunspec: &r}, nil
}

// sunspecAway is how long a device was away that may have come back with a new firmware, and its models elsewhere.
const sunspecAway = 2 * time.Minute

// doubtSunspec has points looked for again after a device was away, and once a day: what is where they were may be something else.
func (s *session) doubtSunspec() {
	if len(s.blocks) == 0 || time.Since(s.lastAnswer) < sunspecAway && time.Since(s.locateAt) < doubtAfter {
		return
	}
	for _, fields := range []map[string]*registerField{s.config.fields, s.config.commands} {
		for name, f := range fields {
			if f.origin != nil {
				fields[name] = f.origin
			}
		}
	}
	s.config.order = slices.DeleteFunc(s.config.order, func(f *registerField) bool { return f.origin != nil })
	s.blocks, s.locateAt = nil, time.Time{}
}

// askSunspecEvery is how long a device that doesn't have a model is not asked for it again.
const askSunspecEvery = time.Minute

// locate finds the points of SunSpec among a session's fields, once.
func (s *session) locate(ctx context.Context) error {
	if time.Now().Before(s.locateAt) {
		return nil
	}
	blocks, err := readSunspec(s.readHolding(ctx))
	if err != nil {
		return err
	}
	s.locateAt = time.Now().Add(askSunspecEvery)
	s.blocks = blocks
	for _, fields := range []map[string]*registerField{s.config.fields, s.config.commands} {
		for name, f := range fields {
			found, err := f.locate(blocks)
			if err != nil {
				return err
			}
			if found == nil {
				continue
			}
			if fields[name] = found; s.config.commands[name] != found {
				s.config.order = append(s.config.order, found)
			}
		}
	}
	return nil
}

// locate is the field where its point is; nil: none of the blocks has it.
func (f *registerField) locate(blocks []sunspecBlock) (found *registerField, err error) {
	if f.sunspec == nil {
		return nil, nil
	}
	for _, b := range blocks {
		if point, config, ok := b.config(*f.sunspec); ok {
			p := f.property
			p.Config = config
			if found, err = parseField(p); err == nil {
				found.origin = f
				found.absent, found.hasAbsent = point.absent()
			}
			return found, err
		}
	}
	return nil, nil
}

// readHolding reads holding registers of the session's unit for readSunspec.
func (s *session) readHolding(ctx context.Context) func(address, quantity uint16) ([]uint16, bool, error) {
	return func(address, quantity uint16) ([]uint16, bool, error) {
		data, err := s.request(ctx, wire.Read(wire.ReadHoldingRegisters, address, quantity), s.config.timeout)
		if err == nil {
			return wire.Words(data), true, nil
		}
		if err = s.explain("SunSpec", err); err != nil {
			if _, refused := asRefusal(err); refused {
				return nil, false, nil
			}
		}
		return nil, false, err
	}
}

// unlocated is why a point of SunSpec has no value.
func (s *session) unlocated(f *registerField) error {
	if len(s.blocks) == 0 {
		return mappers.Refuse(mappers.NotReachable, "the device has no SunSpec at register 40000, 50000 or 0")
	}
	var numbers []string
	for _, b := range s.blocks {
		numbers = append(numbers, fmt.Sprint(b.number))
	}
	return mappers.Refuse(mappers.NotReachable, "the device has no %s: its SunSpec models are %s", f.sunspec.text, strings.Join(numbers, ", "))
}
