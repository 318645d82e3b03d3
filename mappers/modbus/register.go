// SPDX-License-Identifier: Apache-2.0

package modbus

import (
	"bytes"
	"cmp"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/modbus/wire"
)

// registerTable is one of the four address spaces of a unit.
type registerTable uint8

const (
	tableCoil registerTable = iota + 1
	tableDiscrete
	tableInput
	tableHolding
)

func (t registerTable) String() string {
	return [...]string{"", "coil", "discrete-input", "input", "holding"}[t]
}

func (t registerTable) bits() bool { return t == tableCoil || t == tableDiscrete }

// valueKind is how a value lies in its registers.
type valueKind uint8

const (
	kindBit valueKind = iota + 1
	kindInt
	kindUint
	kindFloat
	kindBCD
	kindTime
	kindText
)

// registerField is one property, as it lies in a unit. Its visitor's config:
//
//	register:  coil | discrete-input | holding | input    (also CoilRegister, DiscreteInputRegister, …)
//	address:   0 to 65535, as on the wire                 (also offset, where the register is spelled that way)
//	type:      bool int16 uint16 int32 uint32 int64 uint64 float32 float64 bcd16 bcd32 unixtime32 string; default by the
//	           property's type, and int16 where there is a scale
//	bit:       0 to 15, of a bool in a register
//	bits:      4-7, of an unsigned number: those bits alone; 8-15 is the high byte of a register
//	length:    of a string, in registers
//	scaleFrom: address of the register that holds the power of ten of the scale, in the same table, as in SunSpec
//	wordOrder: high-first (default) | low-first           (also isRegisterSwap)
//	byteOrder: big (default) | little                     (also isSwap)
//	scale, offset: value = register × scale + offset
//	limit:     how many registers: 1, 2 or 4, instead of type; of a string what length says
type registerField struct {
	name      string
	table     registerTable
	address   uint16
	kind      valueKind
	words     uint16
	bit       uint8
	width     uint8 // how many bits of the number, from bit on; 0: all
	lowFirst  bool
	swapBytes bool
	scale     float64
	offset    float64
	property  mappers.Property
	on, off   string

	scaled        bool   // there is a scaleFrom
	factorAddress uint16 // its register
	apart         bool   // it is read with a request of its own
	exponent      int    // what it held when it was last read
	exponentKnown bool

	sunspec   *sunspecReference // of a point of which it isn't known yet where it is
	origin    *registerField    // of a point that was found: as it was before; nil: it is none
	absent    uint64            // what the registers hold where there is no value
	hasAbsent bool
}

// span is what is read for the field in one request: with the register of its factor, where that can be.
func (f *registerField) span() (address, size uint16) {
	if !f.scaled || f.apart {
		return f.address, f.words
	}
	address = min(f.address, f.factorAddress)
	end := max(int(f.address)+int(f.words), int(f.factorAddress)+1) // 65536 with the last register
	return address, uint16(end - int(address))
}

var registerTables = map[string]registerTable{
	"coil": tableCoil, "coils": tableCoil, "coilregister": tableCoil,
	"discreteinput": tableDiscrete, "discreteinputs": tableDiscrete, "discrete": tableDiscrete, "discreteinputregister": tableDiscrete, "discreteinputsregister": tableDiscrete,
	"input": tableInput, "inputregister": tableInput, "inputregisters": tableInput,
	"holding": tableHolding, "holdingregister": tableHolding, "holdingregisters": tableHolding,
}

func parseField(p mappers.Property) (*registerField, error) {
	s := newSettings("visitors["+p.Name+"].config.", p.Config)
	if text, _ := s.get("sunspec"); text != "" {
		return parseSunspecField(s, p, text)
	}
	f := &registerField{name: p.Name, property: p}
	text, key := s.get("register")
	if text == "" {
		return nil, s.bad(key, "is required: coil, discrete-input, holding or input")
	}
	f.table = registerTables[strings.ToLower(strings.NewReplacer("-", "", "_", "", " ", "").Replace(text))]
	if f.table == 0 {
		return nil, s.bad(key, "%q is none of coil, discrete-input, holding, input", text)
	}
	if p.Writable && (f.table == tableInput || f.table == tableDiscrete) {
		return nil, s.bad(key, "%s can't be written, but %s is ReadWrite: use holding or coil", f.table, p.Name)
	}
	for _, parse := range []func(configSettings) error{f.parseAddress, f.parseType, f.parseBits, f.parseOrder, f.parseScale, f.parseFactor, configSettings.unknown} {
		if err := parse(s); err != nil {
			return nil, err
		}
	}
	f.setTexts()
	return f, nil
}

// parseAddress knows that offset is an address where no address is given, as KubeEdge has it.
func (f *registerField) parseAddress(s configSettings) error {
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

var valueKinds = map[string]struct {
	kind  valueKind
	words uint16
}{
	"bool": {kindBit, 1}, "boolean": {kindBit, 1}, "bit": {kindBit, 1},
	"int16": {kindInt, 1}, "int32": {kindInt, 2}, "int64": {kindInt, 4},
	"uint16": {kindUint, 1}, "uint32": {kindUint, 2}, "uint64": {kindUint, 4},
	"float32": {kindFloat, 2}, "float64": {kindFloat, 4},
	"bcd16": {kindBCD, 1}, "bcd32": {kindBCD, 2}, "unixtime32": {kindTime, 2}, "string": {kindText, 0},
}

const typeNames = "bool, int16, uint16, int32, uint32, int64, uint64, float32, float64, bcd16, bcd32, unixtime32, string"

// maxText is how many registers one request can write.
const maxText = wire.MaxWriteRegisters

func (f *registerField) parseType(s configSettings) error {
	text, key := s.get("type")
	limit, err := s.integer(0, 1, maxText, "limit")
	if err != nil {
		return err
	}
	length, err := s.integer(0, 1, maxText, "length")
	if err != nil {
		return err
	}
	if text == "" && (length > 0 || limit > 0) && f.property.Type == mappers.String && len(f.property.Words) == 0 && !f.table.bits() {
		text = "string"
	}
	if text == "" {
		if text, err = f.defaultType(s, limit); err != nil {
			return err
		}
	}
	k, ok := valueKinds[strings.ToLower(text)]
	if !ok {
		return s.bad(key, "%q is none of %s", text, typeNames)
	}
	f.kind, f.words = k.kind, k.words
	if f.kind == kindText {
		f.words = uint16(cmp.Or(length, limit))
	}
	bit, err := s.integer(0, 0, 15, "bit")
	if err != nil {
		return err
	}
	f.bit = uint8(bit)
	_, bitKey := s.get("bit")
	words := len(f.property.Words) > 0
	switch typ := f.property.Type; {
	case f.kind == kindText && f.words == 0:
		return s.bad("length", "is required for a string: how many registers it has, of two characters each")
	case f.kind != kindText && length != 0:
		return s.bad("length", "is for the type string")
	case f.table.bits() && f.kind != kindBit:
		return s.bad(key, "%s holds one bit each: the type must be bool, not %s", f.table, text)
	case s.values["bit"] != "" && (f.kind != kindBit || f.table.bits()):
		return s.bad(bitKey, "is for a bool in a holding or input register")
	case f.kind == kindText && typ != mappers.String:
		return s.bad(key, "string is text, but %s is a %s", f.name, typ)
	case f.kind == kindTime && typ == mappers.String: // as RFC 3339
	case f.kind != kindBit && f.kind != kindText && !typ.Numeric() && !words:
		return s.bad(key, "%s is a number, but %s is a %s: give the visitor words for the numbers", text, f.name, typ)
	case typ == mappers.Bytes || typ == mappers.Object || typ == mappers.Array:
		return s.bad(key, "modbus can't carry a %s", typ)
	case int(f.address)+int(f.words) > 65536:
		return s.bad("address", "%d: a %s there goes beyond the last register", f.address, text)
	case limit != 0 && uint16(limit) != f.words:
		return s.bad("limit", "%d registers are not what a %s has", limit, text)
	}
	return nil
}

// parseBits reads a range of bits, such as 4-7.
func (f *registerField) parseBits(s configSettings) error {
	text, key := s.get("bits")
	if text == "" {
		return nil
	}
	first, last, ranged := strings.Cut(text, "-")
	if !ranged {
		last = first
	}
	low, errLow := strconv.ParseUint(strings.TrimSpace(first), 10, 8)
	high, errHigh := strconv.ParseUint(strings.TrimSpace(last), 10, 8)
	switch {
	case errLow != nil || errHigh != nil || low > high || high >= 16*uint64(f.words):
		return s.bad(key, "%q is no range of the bits 0 to %d, such as 4-7", text, 16*f.words-1)
	case f.kind != kindUint:
		return s.bad(key, "is for an unsigned number: the type must be uint16, uint32 or uint64; one bit of a bool is bit")
	}
	f.bit, f.width = uint8(low), uint8(high-low+1)
	return nil
}

// parseFactor reads where the power of ten of the scale is.
func (f *registerField) parseFactor(s configSettings) error {
	text, key := s.get("scaleFrom")
	if text == "" {
		return nil
	}
	n, err := s.integer(0, 0, 65535, "scaleFrom")
	switch {
	case err != nil:
		return err
	case f.kind != kindInt && f.kind != kindUint && f.kind != kindBCD:
		return s.bad(key, "is for a whole number in registers, not for this type")
	case len(f.property.Words) > 0:
		return s.bad(key, "can't be beside words, which are compared before any scale")
	}
	f.scaled, f.factorAddress = true, uint16(n)
	if n >= int64(f.address) && n < int64(f.address)+int64(f.words) {
		return s.bad(key, "%d is a register of the value itself", n)
	}
	low, high := min(int64(f.address), n), max(int64(f.address)+int64(f.words), n+1)
	f.apart = high-low > wire.MaxReadRegisters
	return nil
}

// defaultType is what the property's type and KubeEdge's limit tell.
func (f *registerField) defaultType(s configSettings, limit int64) (string, error) {
	bits := strconv.FormatInt(limit*16, 10)
	switch t := f.property.Type; {
	case f.table.bits(), t == mappers.Boolean, t == mappers.String && s.values["bit"] != "":
		return "bool", nil
	case s.values["bits"] != "" && limit == 0, t == mappers.String && len(f.property.Words) > 0:
		return "uint16", nil
	case t == mappers.String:
		return "", s.bad("type", "is required for a text in registers: string with length, a number with words, or bool with bit")
	case limit == 3, limit > 4:
		return "", s.bad("limit", "%d registers make no number: 1, 2 or 4", limit)
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

func (f *registerField) parseOrder(s configSettings) error {
	var err error
	if f.lowFirst, err = s.boolean("isRegisterSwap"); err != nil {
		return err
	}
	if f.swapBytes, err = s.boolean("isSwap"); err != nil {
		return err
	}
	for _, order := range []struct {
		key       string
		to        *bool
		high, low string
	}{{"wordOrder", &f.lowFirst, "high-first", "low-first"}, {"byteOrder", &f.swapBytes, "big", "little"}} {
		text, key := s.get(order.key)
		switch strings.ToLower(text) {
		case "":
		case order.high, "big":
			*order.to = false
		case order.low, "little":
			*order.to = true
		default:
			return s.bad(key, "%q is neither %s nor %s", text, order.high, order.low)
		}
	}
	if f.kind == kindBit && f.swapBytes { // the bit lies in the other byte, that is all
		f.bit, f.swapBytes = (f.bit+8)%16, false
	}
	return nil
}

func (f *registerField) parseScale(s configSettings) error {
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
	if (f.kind == kindBit || f.kind == kindText || f.kind == kindTime || len(f.property.Words) > 0) && (f.scale != 1 || f.offset != 0) {
		return s.bad("scale", "a bool, a text, a time and what has words have neither scale nor offset")
	}
	return nil
}

// setTexts sets the texts of a bool's two states.
func (f *registerField) setTexts() {
	switch typ := f.property.Type; {
	case typ.Numeric(), len(f.property.Words) > 0:
		f.on, f.off = "1", "0"
	case typ == mappers.String:
		f.on, f.off = "ON", "OFF"
	default:
		f.on, f.off = "true", "false"
	}
}

// joinWords puts the registers together to one number, in the order of its bytes.
func (f *registerField) joinWords(words []uint16) (n uint64) {
	for i, w := range words {
		n |= uint64(f.swapped(w)) << f.shift(i)
	}
	return n
}

// splitWords is joinWords, backwards.
func (f *registerField) splitWords(n uint64) []uint16 {
	words := make([]uint16, f.words)
	for i := range words {
		words[i] = f.swapped(uint16(n >> f.shift(i)))
	}
	return words
}

// shift is where the register i lies in the number.
func (f *registerField) shift(i int) int {
	if f.lowFirst {
		return 16 * i
	}
	return 16 * (int(f.words) - 1 - i)
}

func (f *registerField) swapped(w uint16) uint16 {
	if f.swapBytes {
		return bits.ReverseBytes16(w)
	}
	return w
}

// reading makes the property's value of registers. Its raw texts are the number before any scale, and its bits.
func (f *registerField) reading(words []uint16) mappers.Reading {
	if f.isAbsent(words) {
		return mappers.Reading{Err: mappers.Refuse(mappers.Unknown, "the device says that it has no value")}
	}
	value, err := f.decode(words)
	return mappers.Reading{Value: value, Err: err, Raw: f.raw(words)}
}

// isAbsent is whether the registers say that there is no value.
func (f *registerField) isAbsent(words []uint16) bool {
	return f.hasAbsent && f.joinWords(words) == f.absent
}

func (f *registerField) raw(words []uint16) []string {
	switch f.kind {
	case kindBit:
		return []string{map[bool]string{true: "1", false: "0"}[f.isOn(words[0])], f.decodeBit(words[0])}
	case kindText:
		text, _ := f.text(words)
		return []string{text}
	}
	n := f.selected(f.joinWords(words))
	texts := []string{strconv.FormatUint(n, 10)}
	switch f.kind {
	case kindInt:
		texts = append(texts, strconv.FormatInt(f.signed(n), 10))
	case kindFloat:
		texts = append(texts, strconv.FormatFloat(f.float(n), 'g', -1, 64))
	case kindBCD:
		if d, ok := bcdNumber(n, f.words); ok {
			texts = []string{strconv.FormatUint(d, 10)}
		}
	}
	return texts
}

// selected are the bits of the number that belong to the property.
func (f *registerField) selected(n uint64) uint64 {
	if f.width == 0 {
		return n
	}
	return n >> f.bit & f.mask()
}

func (f *registerField) mask() uint64 { return 1<<f.width - 1 }

func (f *registerField) signed(n uint64) int64 {
	return int64(n<<(64-16*f.words)) >> (64 - 16*f.words)
}

// float has the shortest decimal number of a float of 32 bits: 0.2301, not 0.23010000610351562.
func (f *registerField) float(n uint64) float64 {
	if f.words == 4 {
		return math.Float64frombits(n)
	}
	x, _ := strconv.ParseFloat(strconv.FormatFloat(float64(math.Float32frombits(uint32(n))), 'g', -1, 32), 64)
	return x
}

// text is what a string's registers hold up to the first NUL, without spaces around it.
func (f *registerField) text(words []uint16) (string, error) {
	words = slices.Clone(words)
	if f.lowFirst {
		slices.Reverse(words)
	}
	var b []byte
	for _, w := range words {
		w = f.swapped(w)
		b = append(b, byte(w>>8), byte(w))
	}
	b, _, _ = bytes.Cut(b, []byte{0})
	text := strings.TrimSpace(string(b))
	switch {
	case text == "":
		return "", mappers.Refuse(mappers.Unknown, "the registers hold no text")
	case !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl):
		return "", mappers.Refuse(mappers.Unknown, "the registers hold % x, which is no text", clipBytes(b))
	}
	return text, nil
}

func clipBytes(b []byte) []byte { return b[:min(len(b), 16)] }

// bcdNumber is the number whose decimal digits are n's groups of four bits. ok is false if one is no digit.
func bcdNumber(n uint64, words uint16) (d uint64, ok bool) {
	for i := 4*int(words) - 1; i >= 0; i-- {
		digit := n >> (4 * i) & 15
		if digit > 9 {
			return 0, false
		}
		d = 10*d + digit
	}
	return d, true
}

// bcdBits is bcdNumber, backwards.
func bcdBits(d uint64) (n uint64) {
	for i := 0; d > 0; i, d = i+4, d/10 {
		n |= d % 10 << i
	}
	return n
}

// factor is what the number is multiplied with.
func (f *registerField) factor() (float64, error) {
	switch {
	case !f.scaled:
		return f.scale, nil
	case !f.exponentKnown:
		return 0, mappers.Refuse(mappers.Unknown, "the scale in register %d is not known", f.factorAddress)
	}
	x := f.scale * math.Pow10(f.exponent)
	if x == 0 || math.IsInf(x, 0) {
		return 0, mappers.Refuse(mappers.Unknown, "the scale %g with the power of ten %d of register %d is beyond all numbers", f.scale, f.exponent, f.factorAddress)
	}
	return x, nil
}

// maxExponent is the largest power of ten that SunSpec knows.
const maxExponent = 10

// setFactor takes the register of the factor.
func (f *registerField) setFactor(w uint16) error {
	n := int(int16(w))
	f.exponent, f.exponentKnown = n, n >= -maxExponent && n <= maxExponent
	if !f.exponentKnown {
		return mappers.Refuse(mappers.Unknown, "register %d holds %d, which is no power of ten from -%d to %d (scaleFrom)", f.factorAddress, n, maxExponent, maxExponent)
	}
	return nil
}

// decode makes text of registers.
func (f *registerField) decode(words []uint16) (string, error) {
	switch f.kind {
	case kindBit:
		return f.decodeBit(words[0]), nil
	case kindText:
		return f.text(words)
	}
	factor, err := f.factor()
	if err != nil {
		return "", err
	}
	n := f.selected(f.joinWords(words))
	plain := factor == 1 && f.offset == 0
	var x float64
	switch f.kind {
	case kindInt:
		if plain {
			return strconv.FormatInt(f.signed(n), 10), nil
		}
		x = float64(f.signed(n))
	case kindTime:
		if f.property.Type == mappers.String && len(f.property.Words) == 0 {
			return time.Unix(int64(n), 0).UTC().Format(time.RFC3339), nil
		}
		return f.unsigned(n)
	case kindUint, kindBCD:
		if f.kind == kindBCD {
			d, ok := bcdNumber(n, f.words)
			if !ok {
				return "", mappers.Refuse(mappers.Unknown, "the registers hold %#x, which is no decimal number (BCD)", n)
			}
			n = d
		}
		if plain {
			return f.unsigned(n)
		}
		x = float64(n)
	case kindFloat:
		x = f.float(n)
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return "", mappers.Refuse(mappers.Unknown, "the registers hold %v, which is no value", x)
		}
		if plain && f.words == 2 && f.property.Type != mappers.Int {
			return strconv.FormatFloat(x, 'f', -1, 64), nil
		}
	}
	return f.format(x*factor + f.offset)
}

// unsigned refuses what the bus' 64-bit integers can't carry.
func (f *registerField) unsigned(n uint64) (string, error) {
	if f.property.Type == mappers.Int && n > math.MaxInt64 {
		return "", mappers.Refuse(mappers.OutOfRange, "%d doesn't fit an int of 64 bits: make the property a double", n)
	}
	return strconv.FormatUint(n, 10), nil
}

// format leaves out the digits that only multiplying has made: 215 × 0.1 is 21.5.
func (f *registerField) format(x float64) (string, error) {
	if f.property.Type == mappers.Int {
		if x = math.Round(x); x >= math.MaxInt64 || x <= math.MinInt64 {
			return "", mappers.Refuse(mappers.OutOfRange, "%g doesn't fit an int of 64 bits", x)
		}
		return strconv.FormatInt(int64(x), 10), nil
	}
	digits := 12
	if f.words == 4 && f.offset == 0 {
		digits = 15 // a counter of 64 bits has them; an offset may leave fewer that are right
	}
	if short, err := strconv.ParseFloat(strconv.FormatFloat(x, 'g', digits, 64), 64); err == nil && (f.kind != kindFloat || f.words == 2) {
		x = short
	}
	if math.IsInf(x, 0) {
		return "", mappers.Refuse(mappers.OutOfRange, "the scaled value is beyond all numbers")
	}
	return strconv.FormatFloat(x+0, 'f', -1, 64), nil
}

func (f *registerField) decodeBit(w uint16) string {
	if f.isOn(w) {
		return f.on
	}
	return f.off
}

func (f *registerField) isOn(w uint16) bool {
	if !f.table.bits() {
		w >>= f.bit
	}
	return w&1 == 1
}

// encode makes registers of text, or says why it can't.
func (f *registerField) encode(value string) ([]uint16, error) {
	if f.kind == kindBit {
		switch value {
		case f.on:
			return []uint16{1}, nil
		case f.off:
			return []uint16{0}, nil
		}
		return nil, mappers.Refuse(mappers.Invalid, "%q is neither %s nor %s", value, f.on, f.off)
	}
	if f.kind == kindText {
		return f.encodeText(value)
	}
	if at, err := time.Parse(time.RFC3339, value); err == nil && f.kind == kindTime {
		value = strconv.FormatInt(at.Unix(), 10)
	}
	if len(f.property.Words) > 0 {
		if n, err := strconv.ParseUint(value, 0, 64); err == nil && strings.HasPrefix(strings.ToLower(value), "0x") {
			value = strconv.FormatUint(n, 10)
		}
	}
	x, err := strconv.ParseFloat(value, 64)
	if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
		return nil, mappers.Refuse(mappers.Invalid, "%q is no number", value)
	}
	factor, err := f.factor()
	if err != nil {
		return nil, err
	}
	n, ok := f.number(value, (x-f.offset)/factor)
	if !ok {
		return nil, mappers.Refuse(mappers.OutOfRange, "%s doesn't fit the %d registers", value, f.words)
	}
	return f.splitWords(n), nil
}

// encodeText fills the registers with a text, and NUL after it.
func (f *registerField) encodeText(value string) ([]uint16, error) {
	if len(value) > 2*int(f.words) {
		return nil, mappers.Refuse(mappers.OutOfRange, "%d bytes don't fit the %d registers", len(value), f.words)
	}
	if value != strings.TrimSpace(value) || strings.ContainsFunc(value, unicode.IsControl) {
		return nil, mappers.Refuse(mappers.Invalid, "a text in registers can have no spaces around it, and no control characters")
	}
	b := append([]byte(value), make([]byte, 2*int(f.words)-len(value))...)
	words := make([]uint16, f.words)
	for i := range words {
		words[i] = f.swapped(uint16(b[2*i])<<8 | uint16(b[2*i+1]))
	}
	if f.lowFirst {
		slices.Reverse(words)
	}
	return words, nil
}

// number is the bit pattern of a value. Integers that are not scaled never pass through a float, which would cost
// the last digits of large ones.
func (f *registerField) number(text string, x float64) (n uint64, ok bool) {
	bits := 16 * int(f.words)
	plain := f.scale == 1 && f.offset == 0 && !f.scaled
	switch {
	case f.width > 0:
		x = math.Round(x)
		if x < 0 || x >= math.Ldexp(1, int(f.width)) {
			return 0, false
		}
		return uint64(x) << f.bit, true
	case f.kind == kindBCD:
		x = math.Round(x)
		if x < 0 || x >= math.Pow10(4*int(f.words)) {
			return 0, false
		}
		return bcdBits(uint64(x)), true
	}
	if i, err := strconv.ParseInt(text, 10, 64); err == nil && plain && f.kind == kindInt {
		return uint64(i), bits == 64 || i >= -(1<<(bits-1)) && i < 1<<(bits-1)
	}
	if u, err := strconv.ParseUint(text, 10, 64); err == nil && plain && f.kind == kindUint {
		return u, bits == 64 || u < 1<<bits
	}
	limit := math.Ldexp(1, bits)
	switch f.kind {
	case kindInt:
		x = math.Round(x)
		if x < -limit/2 || x >= limit/2 {
			return 0, false
		}
		return uint64(int64(x)), true
	case kindUint, kindTime:
		x = math.Round(x)
		if x < 0 || x >= limit {
			return 0, false
		}
		return uint64(x), true
	}
	if bits == 32 {
		return uint64(math.Float32bits(float32(x))), !math.IsInf(float64(float32(x)), 0)
	}
	return math.Float64bits(x), !math.IsInf(x, 0)
}
