// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/edgebus/edgebus/cloud/cli/access"
)

func TestDoctorSendsNoPasswordInTheClear(t *testing.T) {
	ann := api.AuthInfo{Username: "ann", Password: "s3cret"}
	mappers, err := doctorOptions{target: access.Target{MQTT: "mqtt://192.0.2.1", AuthInfo: ann}}.mapperStates(t.Context(), "n1")
	require.ErrorContains(t, err, "in the clear")
	require.Empty(t, mappers)
}
