// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// boundedStructures are the structures of the broker that grow with what clients send and that outlive a packet, and what bounds them: the quota from which their bytes are
// taken, or why there can't be many.
var boundedStructures = map[string]string{
	"client.subs":                     "limits.session.state: filters, by client.weigh",
	"indexLevel.next":                 "limits.session.state: a subscription counts each level",
	"indexLevel.subs":                 "limits.session.state: filters",
	"router.groups":                   "limits.session.state: goes with the group's last subscription",
	"sharedGroup.members":             "limits.session.state: filters",
	"route.targets":                   "a cache of a bounded number of routes, of subscriptions",
	"route.groups":                    "a cache of a bounded number of routes",
	"router.routes":                   "a cache of a bounded number",
	"mergedSubscriptions.identifiers": "limits.session.state: filters",
	"willStore.lost":                  "limits.session.state: wills, by client.weighWill",
	"willStore.held":                  "wills of lost, until their clients are back or their time is over",
	"publisher.aliases":               "limits.session.state: topic aliases",
	"Inbound.byID":                    "limits.session.state: 144 bytes for each QoS 2 publish without PUBREL",
	"inboundPublish.acks":             "maxRepetitions",
	"queue.blocks":                    "limits.session.all: messages, by weight",
	"inflight.byID":                   "limits.session.all: messages, by weight",
	"inflight.resend":                 "limits.session.all: messages in byID",
	"diskQueue.blocks":                "on disk, by limits.session.bytes",
	"diskQueue.pending":               "waits for the journal, which holds publishers back",
	"retainedReplay.ids":              "limits.session.state: filters",
	"replays.list":                    "limits.session.state: filters",
	"liveTopics.last":                 "a bounded number of topics",
	"pendingAcks.publishes":           "limits.receiveMaximum",
	"pendingAcks.unreleased":          "limits.receiveMaximum",
	"unackedPublish.ack":              "limits.receiveMaximum",
	"partialMessages.byNode":          "limits.unfinished: 256 bytes for each node",
	"partsSender.sent":                "limits.receiveMaximum: what is unacknowledged; the messages are those of inflight",
	"frameReader.buf":                 "limits.unfinished: bytes of unfinished packets",
	"rawSocket.out":                   "one write of a WebSocket",
	"Writer.control":                  "the client isn't read while it takes no answers",
	"clients.byID":                    "limits.sessions and limits.perUser",
	"ConnCarrier.conns":               "limits.connections",
	"Origin.Certificates":             "one on its way to the other hub: clusterhub.mostOrigin",
	"clients.conns":                   "limits.connections and limits.perUser",
	"identifierLocks.each":            "connections that wait for their client's turn",
	"pendingConns.places":             "limits.connections",
	"subscribeRequest.granted":        "of one SUBSCRIBE: limits.packet",
	"subscribeRequest.replaced":       "of one SUBSCRIBE: limits.packet",
	"pendingConns.byHost":             "limits.connections",
	"retainedWrites.byTopic":          "waits for the journal, which holds publishers back",
	"messageCommit.changes":           "one publish on its way",
	"messageCommit.offers":            "one publish on its way",
	"sendOptions.along":               "one publish on its way",
	"extraChanges.changes":            "one publish on its way",
	"browserSignIns.byCookie":         "a bounded number, of each user as well",
	"loginThrottle.counted":           "a bounded number of names",
	"loginThrottle.checking":          "passwords that are being checked",
	"loginThrottle.right":             "a bounded number of names",
	"loginThrottle.proven":            "a bounded number of names",
	"Message.Payload":                 "what has the message counts it",
	"Properties.Correlation":          "what has the message counts it",
	"Properties.User":                 "what has the message counts it",
	"DeliveryOptions.IDs":             "limits.session.state: filters",
	"delivery.ids":                    "limits.session.state: filters",
	"Fanout.queue":                    "one for each connection",
	"WriteBatch.writers":              "one for each connection",
	"drainState.waiting":              "one for each stop",
}

// unboundedStructures are structures, or fields of them, that hold settings, rights, numbers, or what is read at the start.
var unboundedStructures = map[string]bool{
	"Options": true, "Listener": true, "User": true, "Auth": true, "LinkQueueOptions": true, "LinkQueueStats": true, "Identity": true, "BrowserUser": true,
	"accessControl": true, "reservedClients": true, "authenticator": true, "credentials": true, "Broker.listeners": true, "ConnCarrier.listeners": true, "ConnCarrierOptions": true,
	"metrics": true, "Report": true, "sysLoads": true, "propertyRule": true, "packetReader": true,
	"journalLoad": true, "RecordLoader": true, "loadedSession": true, "Decoder": true,
}

// Each structure of the broker in which a client's bytes can pile up takes them from a quota, or says here what else bounds it: one that is new has to be thought about.
func TestWhatHoldsAClientsBytesTakesThemFromAQuota(t *testing.T) {
	found := make(map[string]bool)
	files := token.NewFileSet()
	for _, dir := range []string{"broker", "broker/session"} {
		packages, err := parser.ParseDir(files, filepath.Join(repositoryRoot(t), dir), func(f fs.FileInfo) bool { return !strings.HasSuffix(f.Name(), "_test.go") }, 0)
		require.NoError(t, err)
		for _, p := range packages {
			ast.Inspect(p, func(n ast.Node) bool {
				spec, ok := n.(*ast.TypeSpec)
				if !ok {
					return true
				}
				if s, ok := spec.Type.(*ast.StructType); ok {
					for _, name := range growingFields(s) {
						found[spec.Name.Name+"."+name] = true
					}
				}
				return true
			})
		}
	}
	for name := range boundedStructures {
		require.True(t, found[name], "%s is there no more", name)
	}
	for name := range found {
		kind, _, _ := strings.Cut(name, ".")
		if boundedStructures[name] == "" && !unboundedStructures[name] && !unboundedStructures[kind] {
			t.Errorf("%s can grow with what clients send: take its bytes from a quota (quota.Account), and say from which in this test", name)
		}
	}
}

// growingFields lists a structure's maps and slices.
func growingFields(s *ast.StructType) (names []string) {
	for _, f := range s.Fields.List {
		switch kind := f.Type.(type) {
		case *ast.MapType:
		case *ast.ArrayType:
			if kind.Len != nil {
				continue
			}
		default:
			continue
		}
		for _, n := range f.Names {
			names = append(names, n.Name)
		}
	}
	return names
}
