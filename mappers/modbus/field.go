package modbus

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/edgebus/edgebus/mappers"
)

// table is one of the four address spaces of a unit.
type table uint8

const (
	coil table = iota + 1
	discrete
	input
	holding
)

func (t table) String() string {
	return [...]string{"", "coil", "discrete-input", "input", "holding"}[t]
}

func (t table) bits() bool { return t == coil || t == discrete }

// kind is how a value lies in its registers.
type kind uint8

const (
	kindBit kind = iota + 1
	kindInt
	kindUint
	kindFloat
)

// field is one property, as it lies in a unit. Its visitor's config:
//
//	register:  coil | discrete-input | holding | input    (also CoilRegister, DiscreteInputRegister, …)
//	address:   0 to 65535, as on the wire                 (also offset, where the register is spelled that way)
//	type:      bool int16 uint16 int32 uint32 int64 uint64 float32 float64; default by the property's type,
//	           and int16 where there is a scale
//	bit:       0 to 15, of a bool in a register
//	wordOrder: high-first (default) | low-first           (also isRegisterSwap)
//	byteOrder: big (default) | little                     (also isSwap)
//	scale, offset: value = register × scale + offset
//	limit:     how many registers: 1, 2 or 4, instead of type
//	on, off:   texts for true and false of a string property; default ON and OFF
type field struct {
	name      string
	table     table
	address   uint16
	kind      kind
	words     uint16
	bit       uint8
	lowFirst  bool
	swapBytes bool
	scale     float64
	offset    float64
	property  mappers.Property
	on, off   string
}

func (f *field) size() uint16 { return f.words }

var tables = map[string]table{
	"coil": coil, "coils": coil, "coilregister": coil,
	"discreteinput": discrete, "discreteinputs": discrete, "discrete": discrete, "discreteinputregister": discrete, "discreteinputsregister": discrete,
	"input": input, "inputregister": input, "inputregisters": input,
	"holding": holding, "holdingregister": holding, "holdingregisters": holding,
}

func parseField(p mappers.Property) (*field, error) {
	s := newSettings("visitors["+p.Name+"].config.", p.Config)
	f := &field{name: p.Name, property: p}
	text, key := s.get("register")
	if text == "" {
		return nil, s.bad(key, "is required: coil, discrete-input, holding or input")
	}
	f.table = tables[strings.ToLower(strings.NewReplacer("-", "", "_", "", " ", "").Replace(text))]
	if f.table == 0 {
		return nil, s.bad(key, "%q is none of coil, discrete-input, holding, input", text)
	}
	if p.Writable && (f.table == input || f.table == discrete) {
		return nil, s.bad(key, "%s can't be written, but %s is ReadWrite: use holding or coil", f.table, p.Name)
	}
	for _, parse := range []func(settings) error{f.parseAddress, f.parseType, f.parseOrder, f.parseScale, f.parseTexts, settings.unknown} {
		if err := parse(s); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// parseAddress knows that offset is an address where no address is given, as KubeEdge has it.
func (f *field) parseAddress(s settings) error {
	keys := []string{"address"}
	if text, _ := s.get("address"); text == "" {
		keys = []string{"offset"}
		if text, _ := s.get("offset"); text == "" {
			return s.bad("address", "is required: 0 to 65535, counted from 0 as on the wire")
		}
	}
	n, err := s.integer(0, 0, 65535, keys...)
	f.address = uint16(n)
	return err
}

var kinds = map[string]struct {
	kind  kind
	words uint16
}{
	"bool": {kindBit, 1}, "boolean": {kindBit, 1}, "bit": {kindBit, 1},
	"int16": {kindInt, 1}, "int32": {kindInt, 2}, "int64": {kindInt, 4},
	"uint16": {kindUint, 1}, "uint32": {kindUint, 2}, "uint64": {kindUint, 4},
	"float32": {kindFloat, 2}, "float64": {kindFloat, 4},
}

func (f *field) parseType(s settings) error {
	text, key := s.get("type")
	limit, err := s.integer(0, 1, 4, "limit")
	if err != nil {
		return err
	}
	if text == "" {
		if text, err = f.defaultType(s, limit); err != nil {
			return err
		}
	}
	k, ok := kinds[strings.ToLower(text)]
	if !ok {
		return s.bad(key, "%q is none of bool, int16, uint16, int32, uint32, int64, uint64, float32, float64", text)
	}
	f.kind, f.words = k.kind, k.words
	bit, err := s.integer(0, 0, 15, "bit")
	if err != nil {
		return err
	}
	f.bit = uint8(bit)
	_, bitKey := s.get("bit")
	switch typ := f.property.Type; {
	case f.table.bits() && f.kind != kindBit:
		return s.bad(key, "%s holds one bit each: the type must be bool, not %s", f.table, text)
	case s.values["bit"] != "" && (f.kind != kindBit || f.table.bits()):
		return s.bad(bitKey, "is for a bool in a holding or input register")
	case f.kind != kindBit && !typ.Numeric():
		return s.bad(key, "%s is a number, but %s is a %s", text, f.name, typ)
	case typ == mappers.Bytes || typ == mappers.Object || typ == mappers.Array:
		return s.bad(key, "modbus can't carry a %s", typ)
	case int(f.address)+int(f.words) > 65536:
		return s.bad("address", "%d: a %s there goes beyond the last register", f.address, text)
	case limit != 0 && uint16(limit) != f.words:
		return s.bad("limit", "%d registers are not what a %s has", limit, text)
	}
	return nil
}

// defaultType is what the property's type and KubeEdge's limit tell.
func (f *field) defaultType(s settings, limit int64) (string, error) {
	bits := strconv.FormatInt(limit*16, 10)
	switch t := f.property.Type; {
	case f.table.bits(), t == mappers.Boolean, t == mappers.String:
		return "bool", nil
	case limit == 3:
		return "", s.bad("limit", "3 registers make no number: 1, 2 or 4")
	case t == mappers.Int && limit > 0, limit == 1:
		return "int" + bits, nil
	case limit > 0:
		return "float" + bits, nil
	case t == mappers.Int, s.values["scale"] != "", s.values["address"] == "":
		return "int16", nil // who scales has a whole number; KubeEdge's limit is 1 where it is not said
	case t == mappers.Double:
		return "float64", nil
	}
	return "float32", nil
}

func (f *field) parseOrder(s settings) error {
	var err error
	if f.lowFirst, err = s.boolean("isRegisterSwap"); err != nil {
		return err
	}
	if f.swapBytes, err = s.boolean("isSwap"); err != nil {
		return err
	}
	switch text, key := s.get("wordOrder"); strings.ToLower(text) {
	case "":
	case "high-first", "big":
		f.lowFirst = false
	case "low-first", "little":
		f.lowFirst = true
	default:
		return s.bad(key, "%q is neither high-first nor low-first", text)
	}
	switch text, key := s.get("byteOrder"); strings.ToLower(text) {
	case "":
	case "big":
		f.swapBytes = false
	case "little":
		f.swapBytes = true
	default:
		return s.bad(key, "%q is neither big nor little", text)
	}
	if f.kind == kindBit && f.swapBytes { // the bit lies in the other byte, that is all
		f.bit, f.swapBytes = (f.bit+8)%16, false
	}
	return nil
}

func (f *field) parseScale(s settings) error {
	var err error
	if f.scale, err = s.number(1, "scale"); err != nil {
		return err
	}
	if f.scale == 0 {
		return s.bad("scale", "must not be 0")
	}
	if text, _ := s.get("address"); text != "" { // otherwise offset is the address
		if f.offset, err = s.number(0, "offset"); err != nil {
			return err
		}
	}
	if f.kind == kindBit && (f.scale != 1 || f.offset != 0) {
		return s.bad("scale", "a bool has neither scale nor offset")
	}
	return nil
}

func (f *field) parseTexts(s settings) error {
	f.on, f.off = "true", "false"
	on, onKey := s.get("on")
	off, offKey := s.get("off")
	switch typ := f.property.Type; {
	case typ.Numeric():
		f.on, f.off = "1", "0"
	case typ == mappers.String:
		f.on, f.off = "ON", "OFF"
	}
	if f.kind != kindBit || f.property.Type != mappers.String {
		if on != "" || off != "" {
			return s.bad(onKey, "is for a bool of a string property")
		}
		return nil
	}
	if on != "" {
		f.on = on
	}
	if off != "" {
		f.off = off
	}
	if f.on == f.off {
		return s.bad(offKey, "%q is what on is, too", f.off)
	}
	if e := f.property.Enum; len(e) > 0 && (!slices.Contains(e, f.on) || !slices.Contains(e, f.off)) {
		return s.bad(onKey, "%s and %s must be in the property's enum %v: set on and off", f.on, f.off, e)
	}
	return nil
}

// raw puts the registers together to one number, in the order of its bytes.
func (f *field) raw(words []uint16) (n uint64) {
	for i := range words {
		w := words[i]
		if f.lowFirst {
			w = words[len(words)-1-i]
		}
		if f.swapBytes {
			w = w<<8 | w>>8
		}
		n = n<<16 | uint64(w)
	}
	return n
}

// registers is raw, backwards.
func (f *field) registers(n uint64) []uint16 {
	words := make([]uint16, f.words)
	for i := range words {
		w := uint16(n >> (16 * (int(f.words) - 1 - i)))
		if f.swapBytes {
			w = w<<8 | w>>8
		}
		if f.lowFirst {
			words[len(words)-1-i] = w
		} else {
			words[i] = w
		}
	}
	return words
}

// decode makes text of registers.
func (f *field) decode(words []uint16) (string, error) {
	if f.kind == kindBit {
		return f.decodeBit(words[0]), nil
	}
	n := f.raw(words)
	plain := f.scale == 1 && f.offset == 0
	var x float64
	switch f.kind {
	case kindInt:
		i := int64(n<<(64-16*f.words)) >> (64 - 16*f.words)
		if plain {
			return strconv.FormatInt(i, 10), nil
		}
		x = float64(i)
	case kindUint:
		if plain {
			return f.unsigned(n)
		}
		x = float64(n)
	case kindFloat:
		x = math.Float64frombits(n)
		if f.words == 2 {
			x = float64(math.Float32frombits(uint32(n)))
		}
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return "", mappers.Refuse(mappers.Invalid, "the registers hold %v, which is no value", x)
		}
		if plain && f.words == 2 && f.property.Type != mappers.Int {
			return strconv.FormatFloat(x, 'f', -1, 32), nil
		}
	}
	return f.format(x*f.scale + f.offset)
}

// unsigned refuses what the bus' 64-bit integers can't carry.
func (f *field) unsigned(n uint64) (string, error) {
	if f.property.Type == mappers.Int && n > math.MaxInt64 {
		return "", mappers.Refuse(mappers.OutOfRange, "%d doesn't fit an int of 64 bits: make the property a double", n)
	}
	return strconv.FormatUint(n, 10), nil
}

// format leaves out the digits that only multiplying has made: 215 × 0.1 is 21.5.
func (f *field) format(x float64) (string, error) {
	if f.property.Type == mappers.Int {
		if x = math.Round(x); x >= math.MaxInt64 || x <= math.MinInt64 {
			return "", mappers.Refuse(mappers.OutOfRange, "%g doesn't fit an int of 64 bits", x)
		}
		return strconv.FormatInt(int64(x), 10), nil
	}
	if short, err := strconv.ParseFloat(strconv.FormatFloat(x, 'g', 12, 64), 64); err == nil && f.kind != kindFloat {
		x = short
	}
	if math.IsInf(x, 0) {
		return "", mappers.Refuse(mappers.OutOfRange, "the scaled value is beyond all numbers")
	}
	return strconv.FormatFloat(x+0, 'f', -1, 64), nil
}

func (f *field) decodeBit(w uint16) string {
	if !f.table.bits() {
		w >>= f.bit
	}
	if w&1 == 1 {
		return f.on
	}
	return f.off
}
