// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/mappers"
)

func TestEachErrorNamesTheFieldAndTheRule(t *testing.T) {
	s := OfDevice("knx", mappers.Device{Config: map[string]string{"Port": " 80 ", "wait": "2s", "on": "TRUE", "mode": "fast", "file": "../x", "colour": "red"}})
	n, err := s.Integer("port", 1, 1, 100)
	require.NoError(t, err)
	assert.EqualValues(t, 80, n)
	d, err := s.Duration("wait", time.Second, time.Second, time.Minute)
	require.NoError(t, err)
	assert.Equal(t, 2*time.Second, d)
	b, err := s.Boolean("on", false)
	require.NoError(t, err)
	assert.True(t, b)
	w, err := s.Choice("mode", "slow", "slow", "Fast")
	require.NoError(t, err)
	assert.Equal(t, "Fast", w)
	for message, err := range map[string]error{
		`spec.protocol.config.port: "80" is no number from 1 to 10`:              lastError(s.Integer("port", 1, 1, 10)),
		`spec.protocol.config.wait: "2s" is no time from 1ms to 1s, such as 1ms`: lastError(s.Duration("wait", 0, time.Millisecond, time.Second)),
		`spec.protocol.config.wait: "2s" is neither true nor false`:              lastError(s.Boolean("wait", false)),
		`spec.protocol.config.mode: "fast" is none of slow`:                      lastError(s.Choice("mode", "slow", "slow")),
		`spec.protocol.config.colour: is no setting of knx`:                      s.Rest([]mappers.ProtocolSetting{{Name: "port"}, {Name: "wait"}, {Name: "on"}, {Name: "Mode"}, {Name: "file"}}),
	} {
		assert.EqualError(t, err, message)
	}
	_, err = s.FileName("file")
	require.ErrorContains(t, err, "spec.protocol.config.file")
}

// lastError is the error, the last of what a call returns.
func lastError(values ...any) error {
	err, _ := values[len(values)-1].(error)
	return err
}

func TestCredentialsAreAFileOfTheMappersHost(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "press"), []byte("operator\r\nse cret\n"), 0o600))
	lines, err := ReadCredentials(dir, "press", 2)
	require.NoError(t, err)
	assert.Equal(t, []string{"operator", "se cret"}, lines)
	for _, name := range []string{"other", "../press/x"} {
		_, err = ReadCredentials(dir, name, 2)
		require.Error(t, err)
	}
	_, err = ReadCredentials(dir, "press", 3)
	require.ErrorContains(t, err, "must have 3")
}
