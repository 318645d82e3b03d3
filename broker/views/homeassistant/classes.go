// SPDX-License-Identifier: Apache-2.0

package homeassistant

import (
	"slices"
	"strings"
	"sync"

	"github.com/edgebus/edgebus/topics/resource"
)

// numericClasses are Home Assistant's device classes of numbers: the class, its state classes (m: measurement, t: total, i: total_increasing, -:
// none), and its units; none: it has no unit. A class with another unit is refused there. Units with a space in them are left out.
const numericClasses = `
apparent_power m mVA VA kVA
aqi m none
area mti m² cm² km² mm² in² ft² yd² mi² ac ha
atmospheric_pressure m Pa hPa kPa bar cbar mbar mmHg inHg psi
battery m %
blood_glucose_concentration m mg/dL mmol/L
carbon_dioxide m ppm
carbon_monoxide m ppm
conductivity m S/cm mS/cm µS/cm
current m A mA
data_rate m bit/s kbit/s Mbit/s Gbit/s B/s kB/s MB/s GB/s KiB/s MiB/s GiB/s
data_size mti bit kbit Mbit Gbit B kB MB GB TB PB EB ZB YB KiB MiB GiB TiB PiB EiB ZiB YiB
distance mti mm cm m km in ft yd mi nmi
duration mti d h min s ms
energy ti J kJ MJ GJ mWh Wh kWh MWh GWh TWh cal kcal Mcal Gcal
energy_distance m kWh/100km Wh/km mi/kWh km/kWh
energy_storage m J kJ MJ GJ mWh Wh kWh MWh GWh TWh cal kcal Mcal Gcal
frequency m Hz kHz MHz GHz
gas ti m³ ft³ CCF
humidity m %
illuminance m lx
irradiance m W/m² BTU/(h⋅ft²)
moisture m %
nitrogen_dioxide m µg/m³
nitrogen_monoxide m µg/m³
nitrous_oxide m µg/m³
ozone m µg/m³
ph m none
pm1 m µg/m³
pm10 m µg/m³
pm25 m µg/m³
power m mW W kW MW GW TW
power_factor m % none
precipitation mti cm mm in
precipitation_intensity m mm/d mm/h in/d in/h
pressure m Pa hPa kPa bar cbar mbar mmHg inHg psi
reactive_power m var kvar
signal_strength m dB dBm
sound_pressure m dB dBA
speed m mm/d mm/h mm/s m/s m/min km/h in/d in/h in/s ft/s mph kn Beaufort
sulphur_dioxide m µg/m³
temperature m °C °F K
volatile_organic_compounds m µg/m³
volatile_organic_compounds_parts m ppm ppb
voltage m V mV µV kV MV
volume ti L mL m³ ft³ CCF gal
volume_flow_rate m m³/h m³/s ft³/min L/h L/min L/s gal/min mL/s
volume_storage m L mL m³ ft³ CCF gal
water ti L m³ ft³ CCF gal
weight mti kg g mg µg oz lb st
wind_direction - °
wind_speed m m/s km/h ft/s mph kn Beaufort
`

// The classes that other entities have.
var (
	binaryClasses = strings.Fields(`battery battery_charging carbon_monoxide cold connectivity door garage_door gas heat light lock moisture motion
		moving occupancy opening plug power presence problem running safety smoke sound tamper update vibration window`)
	switchClasses = []string{"outlet", "switch"}
	coverClasses  = strings.Fields(`awning blind curtain damper door garage gate shade shutter window`)
	textClasses   = []string{"date", "timestamp"} // of sensors whose values are texts
)

// unitNames are units that people write otherwise than Home Assistant does.
var unitNames = map[string]string{
	"C": "°C", "degC": "°C", "F": "°F", "l": "L", "l/min": "L/min", "l/h": "L/h", "l/s": "L/s", "ml": "mL", "m3": "m³", "m3/h": "m³/h", "m2": "m²",
	"ug/m3": "µg/m³", "μg/m³": "µg/m³", "lux": "lx", "deg": "°", "sec": "s", "VAr": "var",
}

// numericClass is a class of numbers.
type numericClass struct {
	states string
	units  []string
}

var parseClasses = sync.OnceValue(func() map[string]numericClass {
	classes := make(map[string]numericClass)
	for line := range strings.Lines(numericClasses) {
		if f := strings.Fields(line); len(f) > 2 {
			classes[f[0]] = numericClass{f[1], f[2:]}
		}
	}
	return classes
})

// unitOf is a property's unit as Home Assistant writes it.
func unitOf(p resource.Property) string {
	if name := unitNames[p.Unit]; name != "" {
		return name
	}
	return p.Unit
}

// classOf is the device class of a number; empty: it has none that goes with its unit.
func classOf(p resource.Property) string {
	class, known := parseClasses()[p.Quantity]
	unit := unitOf(p)
	if unit == "" {
		unit = "none"
	}
	if !known || !slices.Contains(class.units, unit) {
		return ""
	}
	return p.Quantity
}

// stateClassOf is the state class of a number that is only read; empty: none.
func stateClassOf(p resource.Property, class string) string {
	states := "mti"
	if class != "" {
		states = parseClasses()[class].states
	}
	switch {
	case p.Counter && strings.Contains(states, "i"):
		return "total_increasing"
	case p.Counter:
		return ""
	case strings.Contains(states, "m"):
		return "measurement"
	case strings.Contains(states, "t"):
		return "total"
	}
	return ""
}
