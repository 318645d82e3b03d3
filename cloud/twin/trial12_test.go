package twin

import (
	"bytes"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
)

// A node that sends nonsense fills no log.
func TestTrial12MalformedMessagesAreLoggedNowAndThen(t *testing.T) {
	var log bytes.Buffer
	twins := &Twins{floods: sampled(zerolog.New(&log))}
	for range 1000 {
		twins.receive("n1", broker.Message{Payload: []byte("nonsense")})
	}
	n := bytes.Count(log.Bytes(), []byte("malformed message from the node"))
	require.Positive(t, n)
	require.LessOrEqual(t, n, 40)
}
