// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"crypto/tls"
	"testing"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/topics"
)

// brokerSetup is a broker as one of our programs configures it, and how clients reach it.
type brokerSetup struct {
	name      string
	node      string // of the edge's broker
	webSocket bool
	secure    bool
	carried   bool // by another hub, to which clients connect
	limits    Limits
}

// brokerSetups are where clients reach hub and core, each with the limits that it ships.
func brokerSetups(hub, core Limits) []brokerSetup {
	return []brokerSetup{
		{name: "hub", limits: hub},
		{name: "hub-websocket", limits: hub, webSocket: true},
		{name: "hub-tls", limits: hub, secure: true},
		{name: "hub-tls-carried", limits: hub, secure: true, carried: true},
		{name: "edge", limits: core, node: "n1"},
		{name: "edge-websocket", limits: core, node: "n1", webSocket: true},
	}
}

// options are those of cloudhub or edgecore, on a free port.
func (p brokerSetup) options(t *testing.T) Options {
	l := Listener{Name: p.name, Address: "127.0.0.1:0", WebSocket: p.webSocket}
	if p.secure {
		l.TLS = newTestAuthority(t).server()
	}
	o := Options{
		Listeners: []Listener{l}, Node: p.node, Tree: newFakeTree(), Log: zerolog.Nop(), Limits: p.limits,
		Auth: Auth{Anonymous: []topics.Role{topics.RoleOperator}, LoopbackNodes: true},
	}
	if p.node != "" {
		o.Auth.Anonymous = append(o.Auth.Anonymous, topics.RoleMapper)
		o.Auth.LoopbackNodes = false
	}
	return o
}

// start runs a broker with a journal until the test ends.
func (p brokerSetup) start(t *testing.T, change func(*Options)) *Broker {
	t.Helper()
	b, _ := p.startOn(t, t.TempDir(), change)
	return b
}

// startOn runs a broker on the journal in a directory. stop ends it in order.
func (p brokerSetup) startOn(t *testing.T, dir string, change func(*Options)) (b *Broker, stop func()) {
	t.Helper()
	b, stop = startKept(t, dir, func(o *Options) {
		j := o.Journal.(*journal.Journal)
		*o = p.options(t)
		o.Journal = j
		if change != nil {
			change(o)
		}
	})
	if p.carried {
		startCarrier(t, b)
	}
	return b, stop
}

// restartCrashed runs a broker on what a crash of another leaves now.
func (p brokerSetup) restartCrashed(t *testing.T, dir string) (*Broker, string) {
	t.Helper()
	to := copyCrashed(t, dir)
	b, _ := p.startOn(t, to, nil)
	return b, to
}

// anyServer is for clients that don't look whom they talk to.
func anyServer() *tls.Config { return &tls.Config{InsecureSkipVerify: true} }

// setupTest is a test that has to hold wherever a client connects.
type setupTest struct {
	name string
	run  func(*testing.T, brokerSetup)
}

func runInEachSetup(t *testing.T, places []brokerSetup, cases []setupTest) {
	for _, p := range places {
		for _, c := range cases {
			t.Run(p.name+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				c.run(t, p)
			})
		}
	}
}

// RunDeliveryTests is what the broker owes to clients, wherever they connect: first the cases in which
// brokers are known to go wrong, then the rest.
func RunDeliveryTests(t *testing.T, hub, core Limits) {
	runInEachSetup(t, brokerSetups(hub, core), []setupTest{
		{"a client's own id is no acknowledgement", testClientIDsAndOursAreSeparate},
		{"receive maximum 5, the same ids in between", testReceiveMaximumWithTheSameIDsInBetween},
		{"receive maximum 10, burst of 500 in order", testBurstArrivesInOrder},
		{"a crowd of subscribers, in order", testCrowdInOrder},
		{"resume sends no more than receive maximum, no DUP", testResumeSendsNoMoreThanReceiveMaximum},
		{"200 queued offline in order", testQueuedOfflineInOrder},
		{"20,000 to an offline session", testOffline20000},
		{"beyond the limit a session goes without", testFullSessionGoesWithout},
		{"shared group with a member away", testSharedGroupLeavesOutWhoIsAway},
		{"shared group with a member full", testSharedGroupLeavesOutWhoIsFull},
		{"shared group with a member expired", testSharedGroupForgetsWhoExpired},
		{"QoS 2 repeated is taken once", testQoS2RepetitionIsDeliveredOnce},
		{"SUBSCRIBE with the id of a delivery", testSubscribeWithTheIDOfADelivery},
		{"oversize is dropped, the rest delivered", testOversizeIsDroppedAndTheRestDelivered},
		{"oversize is not sent again", testOversizeIsNotSentAgain},
		{"97 takeovers lose nothing", testTakeoverLosesNothing},
		{"a 3.1.1 client taken over hears nothing", testTakeoverOfV3SendsNothing},
		{"no expiry is invented", testNoExpiryIsInvented},
		{"sessions beyond the limit", testNoSessionEndsForAnother},
		{"a will keeps its properties", testWillKeepsItsProperties},
		{"50 for an offline session, killed and ended", testQueueOutlivesTheBroker},
		{"acknowledged is stored", testAcknowledgementsFollowTheDisk},

		{"each QoS", testDeliversEachQoS},
		{"receive maximum is kept", testReceiveMaximumIsKept},
		{"QoS 2 to a subscriber over reconnects", testQoS2ToASubscriberOverReconnects},
		{"takeover of a stalled client", testTakeoverOfAStalledClient},
		{"concurrent connects of one client leave one", testConcurrentConnectsOfOneClientLeaveOne},
		{"expiry counts down and drops", testExpiryCountsDownAndDrops},
		{"properties are carried", testPropertiesAreCarried},
		{"overlapping subscriptions", testOverlappingSubscriptions},
		{"a filter covers its parent", testFilterCoversItsParent},
		{"no local", testNoLocal},
		{"unsubscribe", testUnsubscribe},
		{"topic alias", testTopicAlias},
		{"QoS 0 is dropped first", testQoS0IsDroppedFirst},
		{"receive maximum of the broker", testReceiveMaximumOfTheBroker},
		{"retained is replaced and forgotten", testRetainedIsReplacedAndForgotten},
		{"retain flag and handling", testRetainFlagAndHandling},
		{"what came live isn't retained", testWhatCameLiveIsNotSentAsRetained},
		{"retained while it is published", testSubscribingWhileAMessageIsPublished},
		{"an empty will", testEmptyWillIsAllowed},
		{"no will after DISCONNECT", testNoWillAfterDisconnect},
		{"will delay", testWillDelay},
		{"will delay ends with the session", testWillDelayEndsWithTheSession},
		{"will on takeover", testWillOnTakeover},
		{"what was sent before the close counts", testWhatWasSentBeforeTheCloseCounts},
		{"a will never overtakes the next connection", testAWillNeverOvertakesTheNextConnectionsMessages},
		{"a session of expiry 0 ends when it is taken over", testASessionOfExpiry0EndsWhenItIsTakenOver},
		{"sent again with its id after a restart", testWhatWasSentIsSentAgainWithItsID},
		{"retained outlives the broker", testRetainedOutlivesTheBroker},
	})
}

// RunDefaultRoomTest is what fits in the room that each program has by default.
func RunDefaultRoomTest(t *testing.T, hub, core Limits) {
	runInEachSetup(t, brokerSetups(hub, core), []setupTest{
		{"subscriber paused during 30,000", testPausedSubscriber30000},
		{"20,000 retained", testRetained20000},
	})
}

// RunStandardTests is what the standard says, statement by statement.
func RunStandardTests(t *testing.T, hub, core Limits) {
	runInEachSetup(t, brokerSetups(hub, core), []setupTest{
		{"malformed packets", testMalformedPacketsCloseTheirSenderOnly},
		{"bad CONNECTs", testBadConnects},
		{"assigned client ids", testAssignedClientIDs},
		{"sessions begin and end", testSessionsBeginAndEnd},
		{"session expiry is negotiated", testSessionExpiryIsNegotiated},
		{"answers fit the client", testAnswersFitTheClient},
		{"no problem information", testNoProblemInformation},
		{"receive maximum counts what isn't released", testReceiveMaximumCountsUnreleased},
		{"aliases are of one connection", testAliasesAreOfOneConnection},
		{"subscriptions are replaced", testSubscriptionsAreReplaced},
		{"many filters are answered in order", testManyFiltersAreAnsweredInOrder},
		{"unsubscribing is exact", testUnsubscribingIsExact},
		{"filters are weighed", testFiltersAreWeighed},
		{"shared subscriptions", testSharedSubscriptions},
		{"what is carried unchanged", testWhatIsCarriedUnchanged},
		{"retained keeps its QoS", testRetainedKeepsItsQoS},
		{"DISCONNECT with will", testDisconnectWithWill},
		{"keep-alive counts from the last packet", testKeepAliveCountsFromTheLastPacket},
		{"wildcards", testWildcards},
		{"ids of QoS 2", testQoS2IDs},
		{"redelivery on reconnect only", testRedeliveryOnReconnectOnly},
	})
}
