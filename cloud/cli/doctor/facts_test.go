package doctor

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/cli/access"
)

func TestDoctorSendsNoPasswordInTheClear(t *testing.T) {
	ann := access.Credentials{User: "ann", Password: "s3cret"}
	mappers, err := doctorOptions{target: access.Target{MQTT: "mqtt://192.0.2.1", Credentials: ann}}.mapperStates(t.Context(), "n1")
	require.ErrorContains(t, err, "in the clear")
	require.Empty(t, mappers)
}
