// SPDX-License-Identifier: Apache-2.0

package jetstream_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
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

// Servers that acknowledge what isn't on their disks, and streams with other settings than the hubs' log needs, are refused with what to do.
func TestServersAndStreamsThatMayLoseFramesAreRefused(t *testing.T) {
	servers := natsservers.StartUnsynced(t, 3)
	r := jetstream.InspectServers(t.Context(), jetstream.Options{}, http.DefaultClient, append(servers.Monitors(), "http://127.0.0.1:1"))
	require.Len(t, r.Wrong, 3)
	for _, what := range r.Wrong {
		require.Contains(t, what, "set sync_interval: always")
	}

	nc, err := nats.Connect(servers.URLs()[0])
	require.NoError(t, err)
	defer nc.Close()
	for stream, wrong := range map[string][2]string{
		"old":      {`"discard": "old"`, "--discard new"},
		"young":    {`"max_age": 1000000000000`, "--max-age 0"},
		"few":      {`"max_msgs": 10`, "--max-msgs=-1"},
		"memory":   {`"storage": "memory"`, "in memory"},
		"async":    {`"persist_mode": "async"`, "persist_mode"},
		"short":    {`"max_msg_size": 1000`, "--max-msg-size=-1"},
		"deleting": {`"deny_delete": false`, "FILE is all of config in `nats stream info deleting --json`, with deny_delete: true"},
		"unpurged": {`"deny_purge": true`, "deny_purge is true"},
		"rolling":  {`"allow_rollup_hdrs": true`, "allow_rollup_hdrs"},
		"ttl":      {`"allow_msg_ttl": true`, "allow_msg_ttl"},
		"fed":      {`"sources": [{"name": "short"}]`, "neither mirror nor sources"},
		"renamed":  {`"subject_transform": {"src": "edgebus.log.renamed", "dest": "other"}`, "neither subject_transform nor republish"},
		"told":     {`"republish": {"src": ">", "dest": "elsewhere.>"}`, "neither subject_transform nor republish"},
		"none":     {`"metadata": {}`, "did not make it"},
	} {
		fields := map[string]any{"name": stream, "subjects": []string{"edgebus.log." + stream}, "discard": "new", "storage": "file", "num_replicas": 1, "deny_delete": true, "allow_direct": true, "allow_atomic": stream != "async"}
		require.NoError(t, json.Unmarshal([]byte("{"+wrong[0]+"}"), &fields))
		text, err := json.Marshal(fields)
		require.NoError(t, err)
		answer, err := nc.Request("$JS.API.STREAM.CREATE."+stream, text, 10*time.Second)
		require.NoError(t, err)
		require.NotContains(t, string(answer.Data), `"error"`, stream)
		_, err = jetstream.Open(t.Context(), jetstream.Options{Servers: servers.URLs(), Stream: stream, Replicas: 1})
		require.ErrorContains(t, err, wrong[1], stream)
	}
	_, err = jetstream.Open(t.Context(), jetstream.Options{Servers: servers.URLs(), Stream: "missing", Replicas: 1})
	require.ErrorContains(t, err, "cluster init")
	require.ErrorIs(t, err, jetstream.ErrNoStream)
}
