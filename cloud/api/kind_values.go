package api

import (
	"time"

	"github.com/edgebus/edgebus/topics/resource"
)

func configurationKind() Kind {
	return Kind{
		Name: resource.KindConfiguration, Plural: "configurations", Singular: "configuration", Short: []string{"akric"}, Namespaced: true,
		Kept: true, Reports: reportsControllers,
		New:      func() any { return new(resource.Configuration) },
		Validate: rules(resource.Configuration.Validate, nil),
		Columns: []Column{
			{Name: "Handler", Type: "string", Path: ".spec.discoveryHandler.name", Description: "The discovery handler that looks for devices."},
			{Name: "Capacity", Type: "integer", Path: ".spec.capacity", Description: "How many nodes may use one device at once."},
			{Name: "Instances", Type: "integer", Path: ".status.instances", Description: "How many devices are found."},
		},
		Cells: cells(func(c *resource.Configuration) []any {
			capacity := 1
			if c.Spec.Capacity != nil {
				capacity = *c.Spec.Capacity
			}
			return []any{c.Spec.DiscoveryHandler.Name, capacity, c.Status.Instances}
		}),
	}
}

func instanceKind() Kind {
	return Kind{
		Name: resource.KindInstance, Plural: "instances", Singular: "instance", Short: []string{"akrii"}, Namespaced: true,
		Kept: true, Reports: reportsControllers,
		Doubts:   doubtNodes("spec.nodes", func(n *resource.Instance) []string { return n.Spec.Nodes }),
		New:      func() any { return new(resource.Instance) },
		Validate: rules(resource.Instance.Validate, resource.Instance.CheckUpdate),
		Columns: []Column{
			{Name: "Config", Type: "string", Path: ".spec.configurationName", Description: "The Configuration that asked for it."},
			{Name: "Shared", Type: "boolean", Path: ".spec.shared", Description: "Whether several nodes see the same device."},
			{Name: "Nodes", Type: "string", Description: "The nodes that see it."},
		},
		Cells: cells(func(n *resource.Instance) []any {
			return []any{n.Spec.ConfigurationName, n.Spec.Shared, someOf(n.Spec.Nodes)}
		}),
		Fields: map[string]func(any) string{
			"spec.configurationName": field(func(n *resource.Instance) string { return n.Spec.ConfigurationName }),
		},
	}
}

func secretKind() Kind {
	return Kind{
		Name: resource.KindSecret, Plural: "secrets", Singular: "secret", Namespaced: true,
		Version: "v1", Flat: true, NoStatus: true, Sealed: true,
		New:      func() any { return new(resource.Secret) },
		Validate: rules(resource.Secret.Validate, resource.Secret.CheckUpdate),
		Prepare:  func(_, next any, _ string, _ time.Time) { next.(*resource.Secret).Complete() },
		Columns: []Column{
			{Name: "Type", Type: "string", Description: "For whom the values are."},
			{Name: "Data", Type: "integer", Description: "How many values there are."},
		},
		Cells: cells(func(s *resource.Secret) []any { return []any{s.Type, len(s.Data)} }),
		Fields: map[string]func(any) string{
			"type": field(func(s *resource.Secret) string { return s.Type }),
		},
	}
}

func configMapKind() Kind {
	return Kind{
		Name: resource.KindConfigMap, Plural: "configmaps", Singular: "configmap", Short: []string{"cm"}, Namespaced: true,
		Version: "v1", Flat: true, NoStatus: true,
		New:      func() any { return new(resource.ConfigMap) },
		Validate: rules(resource.ConfigMap.Validate, resource.ConfigMap.CheckUpdate),
		Columns: []Column{
			{Name: "Data", Type: "integer", Description: "How many values there are."},
		},
		Cells: cells(func(c *resource.ConfigMap) []any { return []any{len(c.Data) + len(c.BinaryData)} }),
	}
}
