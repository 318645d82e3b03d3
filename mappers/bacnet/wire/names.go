// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"strconv"
	"strings"
)

// ObjectID is an object of a device: its type and its number among those of the type.
type ObjectID uint32

// MaxInstance is the highest number of an object; as a device's it means any.
const MaxInstance = 1<<22 - 1

// NewObjectID makes one of a type and a number.
func NewObjectID(typ ObjectType, instance uint32) ObjectID {
	return ObjectID(uint32(typ)<<22 | instance&MaxInstance)
}

// Type is the object's type, Instance its number.
func (id ObjectID) Type() ObjectType { return ObjectType(id >> 22) }

// Instance is the object's number among those of its type.
func (id ObjectID) Instance() uint32 { return uint32(id) & MaxInstance }

// String is analogInput:3, as ParseObject takes it.
func (id ObjectID) String() string { return fmt.Sprintf("%s:%d", id.Type(), id.Instance()) }

// ObjectType is the number of an object's type.
type ObjectType uint16

// The object types that have a present value, and Device.
const (
	AnalogInput          ObjectType = 0
	AnalogOutput         ObjectType = 1
	AnalogValue          ObjectType = 2
	BinaryInput          ObjectType = 3
	BinaryOutput         ObjectType = 4
	BinaryValue          ObjectType = 5
	Calendar             ObjectType = 6
	Device               ObjectType = 8
	Loop                 ObjectType = 12
	MultiStateInput      ObjectType = 13
	MultiStateOutput     ObjectType = 14
	Schedule             ObjectType = 17
	MultiStateValue      ObjectType = 19
	LifeSafetyPoint      ObjectType = 21
	Accumulator          ObjectType = 23
	PulseConverter       ObjectType = 24
	BitStringValue       ObjectType = 39
	CharacterStringValue ObjectType = 40
	IntegerValue         ObjectType = 45
	LargeAnalogValue     ObjectType = 46
	PositiveIntegerValue ObjectType = 48
	LightingOutput       ObjectType = 54
)

var objectTypes = map[ObjectType]string{
	AnalogInput: "analogInput", AnalogOutput: "analogOutput", AnalogValue: "analogValue", BinaryInput: "binaryInput",
	BinaryOutput: "binaryOutput", BinaryValue: "binaryValue", Calendar: "calendar", Device: "device", Loop: "loop",
	MultiStateInput: "multiStateInput", MultiStateOutput: "multiStateOutput", Schedule: "schedule", MultiStateValue: "multiStateValue",
	LifeSafetyPoint: "lifeSafetyPoint", Accumulator: "accumulator", PulseConverter: "pulseConverter", BitStringValue: "bitStringValue",
	CharacterStringValue: "characterStringValue", IntegerValue: "integerValue", LargeAnalogValue: "largeAnalogValue",
	PositiveIntegerValue: "positiveIntegerValue", LightingOutput: "lightingOutput",
}

// shortTypes are the abbreviations that people write.
var shortTypes = map[string]ObjectType{
	"ai": AnalogInput, "ao": AnalogOutput, "av": AnalogValue, "bi": BinaryInput, "bo": BinaryOutput, "bv": BinaryValue,
	"mi": MultiStateInput, "mo": MultiStateOutput, "mv": MultiStateValue, "msi": MultiStateInput, "mso": MultiStateOutput,
	"msv": MultiStateValue, "dev": Device, "csv": CharacterStringValue, "iv": IntegerValue, "piv": PositiveIntegerValue,
	"lav": LargeAnalogValue, "lo": LightingOutput,
}

func (t ObjectType) String() string {
	if name, ok := objectTypes[t]; ok {
		return name
	}
	return strconv.Itoa(int(t))
}

// PropertyID is the number of an object's property.
type PropertyID uint32

// The properties that have a name here; others are given by their number.
const (
	Description     PropertyID = 28
	FirmwareVersion PropertyID = 44
	Location        PropertyID = 58
	MaxPresentValue PropertyID = 65
	MinPresentValue PropertyID = 69
	ModelName       PropertyID = 70
	NumberOfStates  PropertyID = 74
	// ObjectIdentifier is an object's own type and number.
	ObjectIdentifier PropertyID = 75
	ObjectList       PropertyID = 76
	ObjectName       PropertyID = 77
	OutOfService     PropertyID = 81
	PresentValue     PropertyID = 85
	PriorityArray    PropertyID = 87
	Reliability      PropertyID = 103
	RelinquishValue  PropertyID = 104
	StateText        PropertyID = 110
	StatusFlags      PropertyID = 111
	Units            PropertyID = 117
	VendorID         PropertyID = 120
	VendorName       PropertyID = 121
	SerialNumber     PropertyID = 372
)

var propertyNames = map[PropertyID]string{
	Description: "description", FirmwareVersion: "firmwareRevision", Location: "location", MaxPresentValue: "maxPresValue", MinPresentValue: "minPresValue",
	ModelName: "modelName", NumberOfStates: "numberOfStates", ObjectIdentifier: "objectIdentifier", ObjectList: "objectList", ObjectName: "objectName",
	OutOfService: "outOfService", PresentValue: "presentValue", PriorityArray: "priorityArray", Reliability: "reliability",
	RelinquishValue: "relinquishDefault", StateText: "stateText", StatusFlags: "statusFlags", Units: "units", VendorID: "vendorIdentifier",
	VendorName: "vendorName", SerialNumber: "serialNumber",
}

func (p PropertyID) String() string {
	if name, ok := propertyNames[p]; ok {
		return name
	}
	return strconv.Itoa(int(p))
}

// plainName is a name in lower case without what people put between its words.
func plainName(s string) string {
	return strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(strings.TrimSpace(s)))
}

// ParseObject understands analogInput:3, analog-input,3, AI3 and 0:3.
func ParseObject(s string) (ObjectID, error) {
	s = strings.TrimSpace(s)
	i := strings.LastIndexAny(s, ":,")
	typeText, number := s, ""
	if i > 0 {
		typeText, number = s[:i], s[i+1:]
	} else if i = strings.IndexFunc(s, func(r rune) bool { return r >= '0' && r <= '9' }); i > 0 {
		typeText, number = s[:i], s[i:]
	}
	instance, err := strconv.ParseUint(strings.TrimSpace(number), 10, 22)
	if err != nil {
		return 0, fmt.Errorf("%q is no object such as analogInput:3 or AI:3, with a number from 0 to %d", s, MaxInstance)
	}
	typ, err := parseType(typeText)
	return NewObjectID(typ, uint32(instance)), err
}

func parseType(s string) (ObjectType, error) {
	plain := plainName(s)
	if t, ok := shortTypes[plain]; ok {
		return t, nil
	}
	for t, name := range objectTypes {
		if plainName(name) == plain {
			return t, nil
		}
	}
	if n, err := strconv.ParseUint(plain, 10, 10); err == nil {
		return ObjectType(n), nil
	}
	return 0, fmt.Errorf("%q is no type of object such as analogInput, binaryOutput or multiStateValue, nor a number from 0 to 1023", s)
}

// ParseProperty understands presentValue, present-value and 85.
func ParseProperty(s string) (PropertyID, error) {
	plain := plainName(s)
	for p, name := range propertyNames {
		if plainName(name) == plain {
			return p, nil
		}
	}
	if n, err := strconv.ParseUint(plain, 10, 22); err == nil {
		return PropertyID(n), nil
	}
	return 0, fmt.Errorf("%q is no property such as presentValue, nor a number from 0 to %d", s, MaxInstance)
}

// UnitText is the unit of engineering units' number, as models write it; empty: not known here.
func UnitText(n Enumerated) string { return units[n] }

var units = map[Enumerated]string{
	3: "A", 5: "V", 8: "VA", 9: "kVA", 11: "var", 12: "kvar", 16: "J", 17: "kJ", 18: "Wh", 19: "kWh", 27: "Hz", 29: "%RH", 30: "mm", 31: "m", 37: "lx", 39: "kg",
	47: "W", 48: "kW", 49: "MW", 53: "Pa", 54: "kPa", 55: "bar", 62: "°C", 63: "K", 64: "°F", 71: "h", 72: "min", 73: "s", 74: "m/s",
	80: "m³", 82: "L", 85: "m³/s", 87: "L/s", 88: "L/min", 96: "ppm", 98: "%", 104: "rpm", 133: "hPa", 135: "m³/h", 136: "L/h",
	146: "MWh", 2: "mA", 4: "Ω", 6: "kV", 7: "MV", 124: "mV", 134: "mbar",
}
