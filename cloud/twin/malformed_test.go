package twin

import (
	"bytes"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/topics/resource"
)

// A node that sends nonsense fills no log.
func TestMalformedMessagesAreLoggedNowAndThen(t *testing.T) {
	var log bytes.Buffer
	twins := &Twins{sampledLog: (&tree.Options{Log: zerolog.New(&log)}).SampledLog()}
	for range 1000 {
		twins.receiveFromNode("n1", broker.Message{Payload: []byte("nonsense")}, func(error) {})
	}
	n := bytes.Count(log.Bytes(), []byte("malformed message from the node"))
	require.Positive(t, n)
	require.LessOrEqual(t, n, 40)
}

// Who wants something of a device may not date it in the future, where it would win for ever.
func TestDesiredTimestampsAreNotInTheFuture(t *testing.T) {
	r, _ := newJoinedRig(t)
	want := func(value string, ahead time.Duration) error {
		done := make(chan error, 1)
		r.twins.Publish(broker.Message{
			Topic: lampDesired + "/power", Payload: []byte(value), Publisher: &broker.Identity{ClientID: "ops"},
			Props: broker.Properties{User: []broker.UserProperty{{Key: "ts", Value: resource.FormatTime(time.Now().Add(ahead))}}},
		}, func(err error) { done <- err })
		select {
		case err := <-done:
			return err
		case <-time.After(testTimeout):
			t.Fatal("no answer")
			return nil
		}
	}
	require.NoError(t, want("ON", 30*time.Second))
	err := want("OFF", time.Hour)
	require.Equal(t, resource.Invalid, resource.KindOf(err))
	require.ErrorContains(t, err, "more than a minute ahead of the clock here")
	d, _ := r.device("lamp")
	require.Equal(t, resource.Value("ON"), d.Spec.Desired["power"])
}
