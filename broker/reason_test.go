// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// Many clients show only the beginning of a reason string: the rule, which the client can't know, stands before the name, which it has sent.
func TestAReasonStringHasTheRuleBeforeTheName(t *testing.T) {
	long := strings.Repeat("x", 5000)
	for _, topic := range []string{"lamp", "a/lamp", long} {
		for _, err := range []error{
			topicError(resource.Quota, topic, "more than %d user properties", 9), forbiddenError(topic, "more than 9 user properties"),
			resource.Errorf(resource.Invalid, "a/"+topic, "more than 9 user properties"),
		} {
			reason := reasonOf(err)
			require.True(t, strings.HasPrefix(reason, "more than 9 user properties: topic "), reason)
			require.Less(t, len(reason), 600)
		}
	}
	require.Equal(t, "brightness: is above 100", reasonOf(resource.Errorf(resource.Invalid, "brightness", "is above 100")), "a field")
	require.True(t, strings.HasPrefix(reasonOf(resource.Errorf(resource.NotFound, long, "the model lamp has no such property")), "the model lamp has no such property: "))
}

func TestAQuotasReasonHasTheRuleBeforeTheName(t *testing.T) {
	b := startBroker(t, func(o *Options) { withUsers(o); o.Limits.PerUser = 1 })
	op := credentialsOf("op", "secret")
	openClient(t, b, "first", op)
	more := dialBroker(t, b)
	require.Equal(t, byte(0x97), more.connect("second", op))
	require.Equal(t, "one user may have 1 connections at most (limits.perUser), as many as op has", more.connack.Properties.ReasonString)
}

// A node says within its keep-alive that it lives, and the hub's doctor can say when.
func TestABrokerKnowsWhenAClientWasLastHeardOf(t *testing.T) {
	b := startBroker(t, nil)
	_, _, ok := b.Heard("c")
	require.False(t, ok)
	c := openClient(t, b, "c")
	before := time.Now().Truncate(time.Millisecond)
	c.raw([]byte{0xC0, 0}) // PINGREQ
	require.Eventually(t, func() bool {
		at, _, ok := b.Heard("c")
		return ok && !at.Before(before)
	}, testTimeout, time.Millisecond)
}
