// SPDX-License-Identifier: Apache-2.0

// Package prometheus has the alerting rules, which Prometheus may have as well as hub and core themselves.
package prometheus

import _ "embed"

// Rules is edgebus.rules.yaml.
//
//go:embed edgebus.rules.yaml
var Rules []byte
