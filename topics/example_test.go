// SPDX-License-Identifier: Apache-2.0

package topics_test

import (
	"fmt"

	"github.com/edgebus/edgebus/topics"
)

// A topic of a node's tree is read into an Address, and an Address is written as a topic.
func ExampleParse() {
	a, err := topics.Parse("v1/nodes/n1/devices/lamp/desired/power")
	fmt.Println(a.Node, a.Device, a.Name, a.Kind == topics.KindDesired, err)
	a.Kind = topics.KindReported
	fmt.Println(a)

	_, err = topics.Parse("v1/nodes/n1/devices/lamp/wanted/power")
	fmt.Println(err)
	// Output:
	// n1 lamp power true <nil>
	// v1/nodes/n1/devices/lamp/reported/power
	// topic "v1/nodes/n1/devices/lamp/wanted/power": no such topic below a device
}

// The contract can be listed: who may publish to a topic, and whether it is part of the state.
func ExampleTable() {
	for _, t := range topics.Table() {
		if t.Kind == topics.KindDesired {
			fmt.Println(t.Pattern, "retained:", t.Retain, "publish:", t.Publish)
		}
	}
	// Output:
	// devices/{device}/desired/{property} retained: true publish: [operator]
}
