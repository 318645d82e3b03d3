// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"github.com/edgebus/edgebus/cloud/twin"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// mostMappers bounds how many of a node's mappers are asked which settings they take.
const mostMappers = 100

// readDeviceSettings reads which settings a node's mappers have published, or those of any node for the name "+". Before there are twins nobody has published any.
func readDeviceSettings(twins *twin.Twins, node string) (list []resource.ProtocolSettings) {
	if twins == nil || node == "" {
		return nil
	}
	next := twins.Retained(topics.Prefix + node + "/mappers/+/settings")
	for messages := next(mostMappers); len(messages) > 0 && len(list) < mostMappers; messages = next(mostMappers) {
		for _, m := range messages {
			if s, err := resource.ParseProtocolSettings(m.Payload); err == nil {
				list = append(list, s)
			}
		}
	}
	return list
}
