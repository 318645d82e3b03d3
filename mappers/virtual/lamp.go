package virtual

import (
	"math"
	"strconv"
	"time"
)

// A lamp at full brightness ends this much warmer than the room, and gets two thirds of the way in warming.
const (
	roomTemperature = 21.0
	fullWarmth      = 38.0
	warming         = 20 * time.Second
)

// lamp couples a temperature to power and brightness: it follows them slowly, as metal does.
type lamp struct {
	temperature, power, brightness *property
	warmth                         float64
	last                           time.Time
}

// findLamp makes a lamp of a device that looks like one: a temperature without a generator, and a power.
func (s *session) findLamp() {
	t, p := s.props["temperature"], s.props["power"]
	if t == nil || p == nil || t.Writable || !t.Type.Numeric() || t.Config["generator"] != "" || t.Config["value"] != "" {
		return
	}
	s.lamp = &lamp{temperature: t, power: p, brightness: s.props["brightness"], last: s.now()}
}

// target is how much warmer than the room the lamp ends up as it is set now.
func (l *lamp) target() float64 {
	switch l.power.text {
	case "ON", "on", "true", "1":
	default:
		return 0
	}
	if l.brightness == nil {
		return fullWarmth
	}
	b, err := strconv.ParseFloat(l.brightness.text, 64)
	if err != nil {
		return 0
	}
	high := 100.0
	if m := l.brightness.Maximum; m != nil && *m > 0 {
		high = *m
	}
	return fullWarmth * b / high
}

// read lets the time since the last reading pass, and returns the temperature.
func (l *lamp) read(now time.Time) float64 {
	dt := now.Sub(l.last)
	l.last = now
	if dt > 0 {
		l.warmth += (l.target() - l.warmth) * (1 - math.Exp(-float64(dt)/float64(warming)))
	}
	draught := 0.3 * math.Sin(2*math.Pi*float64(now.UnixMilli()%600_000)/600_000)
	return roomTemperature + draught + l.warmth
}
