// SPDX-License-Identifier: Apache-2.0

package jetstream_test

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/jetstream"
	"github.com/edgebus/edgebus/test/natsservers"
	"github.com/edgebus/edgebus/test/orderedtest"
)

// The contract of the port, on three servers.
func TestAStreamOfThreeServersIsALog(t *testing.T) {
	servers := natsservers.Start(t, 3)
	orderedtest.Run(t, func(t *testing.T, dir string) orderedtest.Engine {
		sum := sha256.Sum256([]byte(dir))
		o := jetstream.Options{Servers: servers.URLs(), Stream: "log-" + hex.EncodeToString(sum[:8]), Back: 500 * time.Millisecond, Timeout: 20 * time.Second}
		log, err := jetstream.Open(t.Context(), o)
		if err != nil {
			_, err = jetstream.Create(t.Context(), o)
			require.NoError(t, err)
			log, err = jetstream.Open(t.Context(), o)
		}
		require.NoError(t, err)
		return orderedtest.Engine{
			Log: log, Close: log.Close,
			Cut:   func() error { return nil },
			Renew: func() error { return log.Renew(t.Context()) },
		}
	})
}
