package virtual

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/edgebus/edgebus/mappers"
)

// property is one simulated property.
type property struct {
	mappers.Property
	text, first string // of one that doesn't move
	move        func(now time.Time) float64
}

// spellings are other names for settings.
var spellings = map[string]string{"initial": "value", "minimum": "min", "maximum": "max"}

// understood brings the settings to their usual names, and refuses those that mean nothing.
func understood(config map[string]string, at string) (map[string]string, error) {
	out := make(map[string]string, len(config))
	for key, value := range config {
		name := key
		if usual, ok := spellings[key]; ok {
			name = usual
		}
		switch name {
		case "generator", "min", "max", "period", "value":
			out[name] = value
		default:
			return nil, mappers.BadConfig(at+key, "is no setting of a virtual device")
		}
	}
	return out, nil
}

func newProperty(p mappers.Property, now time.Time, random *rand.Rand) (*property, error) {
	prop := &property{Property: p}
	at := fmt.Sprintf("properties[%s].config.", p.Name)
	config, err := understood(p.Config, at)
	if err != nil {
		return nil, err
	}
	p.Config, prop.Config = config, config
	low, high, err := limits(p, at)
	if err != nil {
		return nil, err
	}
	period := 60 * time.Second
	if text := p.Config["period"]; text != "" {
		if period, err = time.ParseDuration(text); err != nil || period <= 0 {
			return nil, mappers.BadConfig(at+"period", "%q is no duration above 0, such as 60s", text)
		}
	}
	prop.text = prop.start(low)
	if text, ok := p.Config["value"]; ok {
		if err := p.Check(text); err != nil && text != "" {
			return nil, mappers.BadConfig(at+"value", "%s", err.Message)
		}
		prop.text = text
	}
	prop.first = prop.text
	generator := p.Config["generator"]
	if generator == "" && !p.Writable && p.Type.Numeric() && p.Config["value"] == "" {
		generator = "random-walk"
	}
	switch phase := random.Float64(); generator {
	case "", "constant":
	case "sine":
		prop.move = func(t time.Time) float64 {
			return low + (high-low)*(1+math.Sin(2*math.Pi*(phase+turns(t, now, period))))/2
		}
	case "sawtooth":
		prop.move = func(t time.Time) float64 {
			_, part := math.Modf(phase + turns(t, now, period))
			return low + (high-low)*part
		}
	case "random-walk":
		prop.move = walk(low, high, period, now, random.Uint64())
	default:
		return nil, mappers.BadConfig(at+"generator", "%q is none of sine, random-walk, sawtooth, constant", generator)
	}
	if prop.move != nil && (p.Writable || !p.Type.Numeric()) {
		return nil, mappers.BadConfig(at+"generator", "%s is for numbers that can't be written; %s is a %s", generator, p.Name, p.Type)
	}
	return prop, nil
}

func turns(t, since time.Time, period time.Duration) float64 {
	return float64(t.Sub(since)) / float64(period)
}

// walk is a random walk that turns back softly at its limits. It goes a hundred steps a period, however often it is read.
func walk(low, high float64, period time.Duration, now time.Time, seed uint64) func(time.Time) float64 {
	random := rand.New(rand.NewPCG(seed, 1))
	step := max(period/100, time.Millisecond)
	at, last := low+(high-low)*random.Float64(), now
	return func(t time.Time) float64 {
		n := min(int(t.Sub(last)/step), 10_000)
		for range n {
			pull := ((low+high)/2 - at) * 0.01
			at = min(high, max(low, at+pull+(random.Float64()-0.5)*(high-low)*0.1))
		}
		if n > 0 {
			last = t
		}
		return at
	}
}

func limits(p mappers.Property, at string) (low, high float64, err error) {
	low, high = 0, 100
	if p.Minimum != nil {
		low, high = *p.Minimum, max(*p.Minimum+100, high)
	}
	if p.Maximum != nil {
		high = *p.Maximum
	}
	for key, v := range map[string]*float64{"min": &low, "max": &high} {
		if text := p.Config[key]; text != "" {
			if *v, err = strconv.ParseFloat(text, 64); err != nil || math.IsNaN(*v) || math.IsInf(*v, 0) {
				return 0, 0, mappers.BadConfig(at+key, "%q is no number", text)
			}
		}
	}
	if low > high {
		return 0, 0, mappers.BadConfig(at+"min", "%g is above the maximum %g", low, high)
	}
	return low, high, nil
}

// start is what a property has before anybody wrote it: off, closed, the least.
func (p *property) start(low float64) string {
	switch {
	case slices.Contains(p.Enum, "OFF"):
		return "OFF"
	case len(p.Enum) > 0:
		return p.Enum[0]
	}
	switch p.Type {
	case mappers.Int, mappers.Float, mappers.Double:
		return p.format(low)
	case mappers.Boolean:
		return "false"
	case mappers.Object:
		return "{}"
	case mappers.Array:
		return "[]"
	}
	return ""
}

func (p *property) read(now time.Time) string {
	if p.move == nil {
		return p.text
	}
	return p.format(p.move(now))
}

// format gives a number as many digits as a cheap sensor has.
func (p *property) format(f float64) string {
	if p.Type == mappers.Int {
		return strconv.FormatInt(int64(math.Round(f)), 10)
	}
	return strconv.FormatFloat(math.Round(f*100)/100, 'f', -1, 64)
}
