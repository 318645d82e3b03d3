package modbus

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/mappers"
)

// deviceConfig is a Device's configuration, understood.
type deviceConfig struct {
	key    busKey
	unit   uint8
	gap    uint16
	fields map[string]*registerField
	first  *registerField // the first of the model's that can be reached; nil: none
}

// configSettings are a configuration's values and its path. Keys are found whatever their case. A key that was never asked for is
// an error: see unknown.
type configSettings struct {
	path   string
	values map[string]string // by key in lower case
	used   map[string]bool
}

func newSettings(path string, config map[string]string) configSettings {
	s := configSettings{path: path, values: map[string]string{}, used: map[string]bool{}}
	for k, v := range config {
		s.values[strings.ToLower(k)] = strings.TrimSpace(v)
	}
	return s
}

// get returns the first of the keys that is set, and which it was.
func (s configSettings) get(keys ...string) (value, key string) {
	for _, k := range keys {
		low := strings.ToLower(k)
		s.used[low] = true
		if v := s.values[low]; v != "" && value == "" {
			value, key = v, k
		}
	}
	return value, cmp.Or(key, keys[0])
}

func (s configSettings) bad(key, format string, args ...any) error {
	return mappers.BadConfig(s.path+key, format, args...)
}

func (s configSettings) integer(def, low, high int64, keys ...string) (int64, error) {
	text, key := s.get(keys...)
	if text == "" {
		return def, nil
	}
	n, err := strconv.ParseInt(text, 0, 64) // 0x10 is how many manuals write it
	if err != nil || n < low || n > high {
		return 0, s.bad(key, "%q is no number from %d to %d", text, low, high)
	}
	return n, nil
}

func (s configSettings) number(def float64, keys ...string) (float64, error) {
	text, key := s.get(keys...)
	if text == "" {
		return def, nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		return 0, s.bad(key, "%q is no number", text)
	}
	return f, nil
}

func (s configSettings) boolean(keys ...string) (bool, error) {
	text, key := s.get(keys...)
	if text == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(strings.ToLower(text))
	if err != nil {
		return false, s.bad(key, "%q is neither true nor false", text)
	}
	return b, nil
}

// unknown reports a key that means nothing here.
func (s configSettings) unknown() error {
	for _, key := range slices.Sorted(maps.Keys(s.values)) {
		if !s.used[key] {
			return s.bad(key, "is no setting of modbus")
		}
	}
	return nil
}

const protocolPath = "spec.protocol.config."

func parseDevice(d mappers.Device, o Options) (c deviceConfig, err error) {
	s := newSettings(protocolPath, d.Config)
	if c.key.url, err = parseURL(s); err != nil {
		return c, err
	}
	unit, err := s.integer(1, 0, 255, "unit", "slaveID", "unitID")
	if err != nil {
		return c, err
	}
	gap, err := s.integer(8, 0, 100, "gap")
	if err != nil {
		return c, err
	}
	c.unit, c.gap, c.key.timeout = uint8(unit), uint16(gap), o.Timeout
	if text, key := s.get("timeout"); text != "" {
		if c.key.timeout, err = time.ParseDuration(text); err != nil || c.key.timeout <= 0 {
			return c, s.bad(key, "%q is no duration above 0, such as 2s", text)
		}
	}
	s.get("communicateMode") // KubeEdge's; TCP or RTU follows from the address
	if err := s.unknown(); err != nil {
		return c, err
	}
	c.fields = map[string]*registerField{}
	for _, p := range d.Properties {
		if !p.Visited && len(p.Config) == 0 {
			continue // the model doesn't say how to reach it: its reads and writes are refused
		}
		if c.fields[p.Name], err = parseField(p); err != nil {
			return c, err
		}
		if c.first == nil {
			c.first = c.fields[p.Name]
		}
	}
	return c, nil
}

func parseURL(s configSettings) (string, error) {
	text, key := s.get("address", "url")
	if ip, _ := s.get("ip", "host"); text == "" && ip != "" {
		port, err := s.integer(502, 1, 65535, "port", "tcpPort")
		if err != nil {
			return "", err
		}
		text = net.JoinHostPort(ip, strconv.FormatInt(port, 10))
	}
	s.get("port", "tcpPort")
	if text == "" {
		return "", s.bad(key, "is required: where the device is, such as tcp://10.0.0.5:502")
	}
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		scheme, rest = "tcp", text
	}
	scheme = strings.ToLower(scheme)
	if scheme != "tcp" && scheme != "rtuovertcp" {
		return "", s.bad(key, "%q: %s is not supported; use tcp://host:port or rtuovertcp://host:port", text, scheme)
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		host, port = strings.Trim(rest, "[]"), "502"
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 || host == "" || strings.ContainsAny(host, "/ ") {
		return "", s.bad(key, "%q is no address of a host, such as tcp://10.0.0.5:502", text)
	}
	return fmt.Sprintf("%s://%s", scheme, net.JoinHostPort(host, port)), nil
}

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
)

// registerField is one property, as it lies in a unit. Its visitor's config:
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
type registerField struct {
	name      string
	table     registerTable
	address   uint16
	kind      valueKind
	words     uint16
	bit       uint8
	lowFirst  bool
	swapBytes bool
	scale     float64
	offset    float64
	property  mappers.Property
	on, off   string
}

var registerTables = map[string]registerTable{
	"coil": tableCoil, "coils": tableCoil, "coilregister": tableCoil,
	"discreteinput": tableDiscrete, "discreteinputs": tableDiscrete, "discrete": tableDiscrete, "discreteinputregister": tableDiscrete, "discreteinputsregister": tableDiscrete,
	"input": tableInput, "inputregister": tableInput, "inputregisters": tableInput,
	"holding": tableHolding, "holdingregister": tableHolding, "holdingregisters": tableHolding,
}

func parseField(p mappers.Property) (*registerField, error) {
	s := newSettings("visitors["+p.Name+"].config.", p.Config)
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
	for _, parse := range []func(configSettings) error{f.parseAddress, f.parseType, f.parseOrder, f.parseScale, f.parseTexts, configSettings.unknown} {
		if err := parse(s); err != nil {
			return nil, err
		}
	}
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
}

func (f *registerField) parseType(s configSettings) error {
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
	k, ok := valueKinds[strings.ToLower(text)]
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
func (f *registerField) defaultType(s configSettings, limit int64) (string, error) {
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
	if f.kind == kindBit && (f.scale != 1 || f.offset != 0) {
		return s.bad("scale", "a bool has neither scale nor offset")
	}
	return nil
}

func (f *registerField) parseTexts(s configSettings) error {
	f.on, f.off = "true", "false"
	on, onKey := s.get("on", "true") // true and false are what YAML makes of on and off without quotes
	off, offKey := s.get("off", "false")
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
	f.on, f.off = cmp.Or(on, f.on), cmp.Or(off, f.off)
	if f.on == f.off {
		return s.bad(offKey, "%q is what on is, too", f.off)
	}
	if e := f.property.Enum; len(e) > 0 && (!slices.Contains(e, f.on) || !slices.Contains(e, f.off)) {
		return s.bad(onKey, "%s and %s must be in the property's enum %v: set on and off", f.on, f.off, e)
	}
	return nil
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

// decode makes text of registers.
func (f *registerField) decode(words []uint16) (string, error) {
	if f.kind == kindBit {
		return f.decodeBit(words[0]), nil
	}
	n := f.joinWords(words)
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
	if short, err := strconv.ParseFloat(strconv.FormatFloat(x, 'g', 12, 64), 64); err == nil && f.kind != kindFloat {
		x = short
	}
	if math.IsInf(x, 0) {
		return "", mappers.Refuse(mappers.OutOfRange, "the scaled value is beyond all numbers")
	}
	return strconv.FormatFloat(x+0, 'f', -1, 64), nil
}

func (f *registerField) decodeBit(w uint16) string {
	if !f.table.bits() {
		w >>= f.bit
	}
	if w&1 == 1 {
		return f.on
	}
	return f.off
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
	x, err := strconv.ParseFloat(value, 64)
	if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
		return nil, mappers.Refuse(mappers.Invalid, "%q is no number", value)
	}
	n, ok := f.number(value, (x-f.offset)/f.scale)
	if !ok {
		return nil, mappers.Refuse(mappers.OutOfRange, "%s doesn't fit the %d registers", value, f.words)
	}
	return f.splitWords(n), nil
}

// number is the bit pattern of a value. Integers that are not scaled never pass through a float, which would cost
// the last digits of large ones.
func (f *registerField) number(text string, x float64) (n uint64, ok bool) {
	bits := 16 * int(f.words)
	plain := f.scale == 1 && f.offset == 0
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
	case kindUint:
		x = math.Round(x)
		if x < 0 || x >= limit {
			return 0, false
		}
		return uint64(x), true
	}
	if bits == 32 {
		return uint64(math.Float32bits(float32(x))), !math.IsInf(float64(float32(x)), 0)
	}
	return math.Float64bits(x), true
}
