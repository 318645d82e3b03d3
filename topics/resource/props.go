package resource

import (
	"strconv"
	"time"

	"github.com/edgebus/edgebus/topics"
)

// Prop is an MQTT 5 user property: metadata that travels beside a value.
type Prop struct{ Key, Value string }

const (
	propVer     = "ver"
	propTS      = "ts"
	propOrigin  = "origin"
	propFor     = "for"
	propNearest = "nearest" // reported: the device can have nothing nearer to the version in for
	propBasedOn = "basedOn"
	propUntil   = "until"      // when an override ends
	propValid   = "validUntil" // until when a desired value may be applied
)

// Props are what stands beside a value on a topic of this kind.
func (s Stored) Props(kind topics.Kind) []Prop {
	props := make([]Prop, 0, 6)
	number := func(key string, n uint64) {
		if n != 0 {
			props = append(props, Prop{key, strconv.FormatUint(n, 10)})
		}
	}
	text := func(key, value string) {
		if value != "" {
			props = append(props, Prop{key, value})
		}
	}
	number(propVer, s.Ver)
	text(propTS, Millis(s.TS))
	text(propOrigin, s.Origin)
	number(propFor, s.For)
	number(propBasedOn, s.BasedOn)
	if kind == topics.KindDesired {
		text(propValid, Millis(s.Until))
	} else {
		text(propUntil, Millis(s.Until))
	}
	return props
}

// SetProp reads one user property that a publisher sent beside a value; one that is
// unknown changes nothing. The error names what can't be read.
func (s *Stored) SetProp(key, value string) (err error) {
	var at time.Time
	switch key {
	case propFor:
		if s.For, err = strconv.ParseUint(value, 10, 64); err != nil {
			return Errorf(Invalid, propFor, "%s is not a version number", clip(value))
		}
	case propNearest:
		if s.Nearest, err = strconv.ParseBool(value); err != nil {
			return Errorf(Invalid, propNearest, "%s is neither true nor false", clip(value))
		}
	case propTS:
		if at, err = ParseTime(value); err != nil {
			return Errorf(Invalid, key, "%v", err)
		}
		s.TS = at.UnixMilli()
	case propUntil, propValid:
		if at, err = ParseTime(value); err != nil {
			return Errorf(Invalid, key, "%v", err)
		}
		s.Until = at.UnixMilli()
	}
	return nil
}
