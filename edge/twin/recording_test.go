// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// recordedSteps are what a history is told, in words.
type recordedSteps struct {
	mu   sync.Mutex
	list []string
}

func (s *recordedSteps) Record(b *resource.Bundle, property, value string, _ int64) {
	s.add("%s %s is %s", b.Device.Metadata.UID, property, value)
}

func (s *recordedSteps) End(b *resource.Bundle, property string, _ int64) {
	s.add("%s %s is not known", b.Device.Metadata.UID, property)
}

func (s *recordedSteps) add(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, fmt.Sprintf(format, args...))
}

// take are those since the last call.
func (s *recordedSteps) take() (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list, s.list = s.list, nil
	return list
}

func (s *recordedSteps) await(t *testing.T, step string) {
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.Contains(s.list, step)
	}, testTimeout, time.Millisecond, step)
}

func newRecordedRig(t *testing.T) (*rig, *recordedSteps) {
	r, steps := newJoinedRig(t), new(recordedSteps)
	r.history = steps
	r.restart()
	r.connect()
	require.NoError(t, r.send("devices/hall/state", "online"))
	require.NoError(t, r.send("devices/hall/reported/temperature", "20"))
	require.Equal(t, []string{"u1 temperature is 20"}, steps.take())
	return r, steps
}

func TestTheHistoryIsToldWhatIsKnownOfADevice(t *testing.T) {
	r, steps := newRecordedRig(t)
	require.NoError(t, r.send("devices/hall/reported/temperature", "20"))
	require.NoError(t, r.send("devices/hall/state", "offline"))
	require.NoError(t, r.send("devices/hall/state", "online"))
	require.NoError(t, r.send("devices/hall/reported/temperature", ""))
	require.Equal(t, []string{"u1 temperature is 20", "u1  is not known", "u1 temperature is 20", "u1 temperature is not known"}, steps.take())
}

// A Device that comes back later was not as it is all the time.
func TestNothingIsKnownOfADeviceThatLeavesTheNode(t *testing.T) {
	r, steps := newRecordedRig(t)
	r.want("devices/hall", "", 0)
	steps.await(t, "u1  is not known")
}

func TestNothingIsKnownOfADeviceThatIsReplacedByAnotherOfItsName(t *testing.T) {
	r, steps := newRecordedRig(t)
	r.add("hall", "u2", thermostat)
	steps.await(t, "u1  is not known")
}
