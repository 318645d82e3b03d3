package twin

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
)

// TestAStoreThatBeginsAnewGivesOtherVersions: what a mapper applied of the store before answers nothing of this one.
func TestAStoreThatBeginsAnewGivesOtherVersions(t *testing.T) {
	begin := func(epoch uint32) *rig {
		r := newRigOf(t, epoch)
		r.add("hall", "u1", thermostat)
		r.want("devices/hall/desired/setpoint", "21", 41)
		r.connect()
		return r
	}
	r := begin(7)
	first := userProperty(r.value("devices/hall/desired/setpoint", "21"), "ver")
	require.Equal(t, strconv.Itoa(7<<32+1), first)
	require.NoError(t, r.send("devices/hall/reported/setpoint", "21", forVersion(first)))
	require.Equal(t, first, userProperty(r.value("devices/hall/reported/setpoint", "21"), "for"))
	r.restart()
	require.Equal(t, first, userProperty(r.value("devices/hall/desired/setpoint", "21"), "ver"), "the same store")

	other := begin(3)
	second := userProperty(other.value("devices/hall/desired/setpoint", "21"), "ver")
	require.Equal(t, strconv.Itoa(3<<32+1), second)
	require.NoError(t, other.send("devices/hall/reported/setpoint", "20", forVersion(first), broker.UserProperty{Key: "nearest", Value: "true"}))
	m := other.value("devices/hall/reported/setpoint", "20")
	require.Empty(t, userProperty(m, "for")+userProperty(m, "basedOn"), "an answer to the store before")
	require.NoError(t, other.send("devices/hall/refused/setpoint", `{"for":`+first+`,"code":"Stuck"}`))
	require.NotContains(t, other.retained(), "devices/hall/refused/setpoint")
	require.NoError(t, other.send("devices/hall/reported/setpoint", "21", forVersion(second)))
	require.Equal(t, second, userProperty(other.value("devices/hall/reported/setpoint", "21"), "for"))
}

func TestAnEpochIsANumberThatEveryReaderOfJSONHasExactly(t *testing.T) {
	for range 1000 {
		epoch := newEpoch()
		require.NotZero(t, epoch)
		require.Less(t, uint64(epoch)<<32, uint64(1)<<53)
	}
}
