package setup

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/configs"
)

// Each limit of the configuration is one of the broker's.
func TestLimitsReachTheBroker(t *testing.T) {
	o, err := Broker(configs.MQTT{}, configs.Auth{}, configs.Limits{
		Connections: 1, PerUser: 2, PerAddress: 3, Sessions: 4, ConnectRate: 5, ConnectTimeout: 6 * time.Second, WrongPasswords: 7,
		Subscriptions: 8, WriteTimeout: 9 * time.Second, Packet: 10, PacketRate: 21, Inflight: 11, ReceiveMaximum: 12, TopicAliases: 13,
		KeepAlive: 14 * time.Second, Session: configs.SessionLimits{Messages: 15, Bytes: 16, All: 20, Expiry: 17 * time.Second},
		Retained: configs.Quota{Messages: 18, Bytes: 19},
	}, false)
	require.NoError(t, err)
	require.Equal(t, broker.Limits{
		Connections: 1, PerUser: 2, PerAddress: 3, Sessions: 4, ConnectRate: 5, ConnectTimeout: 6 * time.Second, WrongPasswords: 7,
		Subscriptions: 8, WriteTimeout: 9 * time.Second, MaximumPacket: 10, PacketRate: 21, Inflight: 11, ReceiveMaximum: 12, TopicAliases: 13,
		KeepAlive: 14 * time.Second, QueuedMessages: 15, QueuedBytes: 16, AllQueuedBytes: 20, SessionExpiry: 17 * time.Second,
		RetainedMessages: 18, RetainedBytes: 19,
	}, o.Limits)
}
