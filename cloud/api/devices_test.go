// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/history"
	"github.com/edgebus/edgebus/broker/history/requests"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// noPast is the past of a node without one.
type noPast struct{}

func (noPast) Read(context.Context, history.Query) (a resource.HistoryAnswer, err error) {
	return a, nil
}

func (noPast) Export(context.Context, history.Query, func(resource.HistoryAnswer) error) error {
	return nil
}

// newHubWithServices is a hub with users, which says of each command who sent it where.
func newHubWithServices(t *testing.T) *hub {
	h := newHub(t, func(o *hubOptions) {
		o.Authenticate, o.MaxBody = authenticateByHeader, 4<<10
		o.Page.Diagnose = func(context.Context, string) (any, error) { return map[string]string{"verdict": "ok"}, nil }
		o.Devices = DeviceServices{
			History: func(string) requests.Source { return noPast{} },
			Call: func(_ context.Context, id broker.Identity, topic string, payload []byte, _ time.Duration) (CommandAnswer, error) {
				return CommandAnswer{Code: topics.CodeOK, Payload: id.User + " " + topic + " " + string(payload)}, nil
			},
		}
	})
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON, "As", "boss")
	for name, node := range map[string]string{"lamp1": "n1", "lamp2": "n2"} {
		h.ok("POST", namespaceRoot+"/devices", deviceOnNode(name, node), "As", "boss")
	}
	return h
}

func TestWhatThereIsOfADeviceIsForWhoMayReadOrWriteIt(t *testing.T) {
	h := newHubWithServices(t)
	reads, writes := "boss ann vic eve n1", "boss ann"
	for request, allowed := range map[string]string{
		"GET " + namespaceRoot + "/devices/lamp1/properties/power":       reads,
		"GET " + namespaceRoot + "/devices/lamp1/history?property=power": reads,
		"GET " + namespaceRoot + "/devices/lamp1/history?format=csv":     reads,
		"GET " + namespaceRoot + "/devices/lamp2/properties/power":       "boss eve",
		"GET " + namespaceRoot + "/devices/lamp2/history?property=power": "boss eve",
		"POST " + namespaceRoot + "/devices/lamp1/commands/beep":         writes,
		"POST " + namespaceRoot + "/devices/lamp2/commands/beep":         "boss",
		"DELETE " + namespaceRoot + "/devices/lamp1/history":             writes,
		"DELETE " + namespaceRoot + "/devices/lamp2/history":             "boss",
		"GET /doctor/n1": reads,
		"GET /doctor/n2": "boss eve",
	} {
		method, path, _ := strings.Cut(request, " ")
		for _, who := range strings.Fields("boss ann vic eve img map n1 joe") {
			want := http.StatusForbidden
			if strings.Contains(" "+allowed+" ", " "+who+" ") {
				want = http.StatusOK
			}
			r := h.do(method, path, "", "As", who)
			require.Equal(t, want, r.code, "%s as %s: %s", request, who, r.body)
		}
		require.Equal(t, http.StatusUnauthorized, h.do(method, path, "").code, request)
	}
}

func TestACommandOverHTTPIsItsSendersAndHasABoundedBody(t *testing.T) {
	h := newHubWithServices(t)
	at := namespaceRoot + "/devices/lamp1/commands/beep"
	require.Equal(t, "ann v1/nodes/n1/devices/lamp1/commands/beep twice", h.ok("POST", at, "twice", "As", "ann").str("payload"))
	require.Contains(t, h.refused(413, "RequestEntityTooLarge", "POST", at, strings.Repeat("x", 5<<10), "As", "ann"), "larger than 4096 bytes")
	require.Contains(t, h.refused(400, "BadRequest", "POST", at+"?timeout=1", "", "As", "ann"), "timeout")
	require.Contains(t, h.refused(400, "BadRequest", "POST", namespaceRoot+"/devices/lamp1/commands/a%2Fb", "", "As", "ann"), "no name of a command")
	r := h.do("POST", at, "", "As", "ann", "Sec-Fetch-Site", "cross-site")
	require.Equal(t, http.StatusForbidden, r.code, "a page of another site")
}
