// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLabelValuesAreInOneStyle(t *testing.T) {
	for text, want := range map[string]string{
		"queue_full": "queue_full", "keep-alive": "keep_alive", "BadTopic": "bad_topic", "OK": "ok", "NodeOffline": "node_offline",
		"the will's topic is invalid": "the_wills_topic_is_invalid", "no such version of MQTT": "no_such_version_of_mqtt", "no CONNECT in time": "no_connect_in_time",
		"too many wrong passwords: try again in a minute": "too_many_wrong_passwords", "": "", " a, b ": "a_b",
	} {
		require.Equal(t, want, Label(text))
	}
}
