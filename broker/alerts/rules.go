// SPDX-License-Identifier: Apache-2.0

package alerts

import (
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"
)

// Rule is a condition that is worth a look: the form is that of Prometheus' alerting rules.
type Rule struct {
	Name        string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`

	expression expression
	after      time.Duration
}

// ParseRules reads a file of rules for Prometheus.
func ParseRules(text []byte) (list []Rule, err error) {
	var file struct {
		Groups []struct{ Rules []Rule }
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return nil, err
	}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if r.Name == "" {
				continue // a recording rule
			}
			if r.expression, err = parseExpression(r.Expr); err != nil {
				return nil, fmt.Errorf("%s: %w", r.Name, err)
			}
			if r.For != "" {
				if r.after, err = time.ParseDuration(r.For); err != nil {
					return nil, fmt.Errorf("%s: for: %w", r.Name, err)
				}
			}
			list = append(list, r)
		}
	}
	return list, nil
}

var placeholder = regexp.MustCompile(`\{\{ *\$(labels\.(\w+)|value)(?: *\| *(\w+))? *\}\}`)

// alert is what a rule says of a series.
func (r *Rule) alert(instance string, s sample) Alert {
	labels := make(map[string]string, len(s.labels)+3)
	maps.Copy(labels, s.labels)
	labels["instance"] = instance
	fill := func(text string) string {
		return placeholder.ReplaceAllStringFunc(text, func(found string) string {
			parts := placeholder.FindStringSubmatch(found)
			if parts[2] != "" {
				return labels[parts[2]]
			}
			return formatValue(s.value, parts[3])
		})
	}
	a := Alert{Labels: labels, Annotations: make(map[string]string, len(r.Annotations))}
	for k, v := range r.Annotations {
		a.Annotations[k] = fill(v)
	}
	for k, v := range r.Labels {
		labels[k] = fill(v)
	}
	labels["alertname"] = r.Name
	return a
}

// formatValue is a value as Prometheus' function of that name has it.
func formatValue(v float64, function string) string {
	switch function {
	case "humanizeDuration":
		return time.Duration(v * float64(time.Second)).Round(time.Millisecond).String()
	case "humanizePercentage":
		return strconv.FormatFloat(100*v, 'g', 4, 64) + "%"
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}
