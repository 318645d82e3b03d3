// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/edgebus/edgebus/cloud/api/index"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// Kinds are the canonical kinds, in the order of discovery. Their dialects follow from topics/dialect.
func Kinds() (kinds []Kind) {
	views := map[string]func(objects.Kind) Kind{
		resource.KindDevice: deviceKind, resource.KindDeviceModel: modelKind, resource.KindNode: nodeKind, resource.KindFleet: fleetKind,
		resource.KindTemplateVersion: templateVersionKind, resource.KindRepository: repositoryKind, resource.KindResourceSync: resourceSyncKind,
		resource.KindUpgrade: upgradeKind, resource.KindArtifact: artifactKind, resource.KindConfiguration: configurationKind, resource.KindInstance: instanceKind,
		resource.KindEnrollmentRequest: enrollmentKind, resource.KindSecret: secretKind, resource.KindConfigMap: configMapKind,
		resource.KindEvent: eventKind, resource.KindLease: leaseKind, resource.KindRule: ruleKind, resource.KindRuleEndpoint: ruleEndpointKind,
	}
	for _, k := range objects.Kinds() {
		kinds = append(kinds, views[k.Name](k))
		if k.Name == resource.KindEvent {
			kinds = append(kinds, eventsEventKind(k))
		}
	}
	return kinds
}

func conditionStatus(list []resource.Condition, kind string) string {
	return cmp.Or(conditionStatusIfAny(list, kind), "Unknown")
}

// conditionStatusIfAny is empty where there is no such condition.
func conditionStatusIfAny(list []resource.Condition, kind string) string {
	for _, c := range list {
		if c.Type == kind {
			return c.Status
		}
	}
	return ""
}

func deviceKind(k objects.Kind) Kind {
	return Kind{
		Kind: k, Plural: "devices", Singular: "device", Short: []string{"dev"},
		Reset: resetDevice,
		Node:  nodeOfDevice,
		Columns: []Column{
			{Name: "Node", Type: "string", Path: ".spec.nodeName", Description: "The node that the device belongs to."},
			{Name: "Model", Type: "string", Path: ".spec.deviceModelRef.name", Description: "The DeviceModel that describes it."},
			{Name: "State", Type: "string", Path: ".status.state", Description: "online, offline or unknown, as its mapper says."},
			{Name: "In-Sync", Type: "string", Path: ".status.conditions[?(@.type==\"InSync\")].status", Description: "Whether every property is as it is wanted."},
			{Name: "Alarm", Type: "string", Description: "The most urgent alarm that is raised, and how many there are besides."},
			{Name: "Reported", Type: "string", Description: "The values that it reported last."},
			{Name: "Protocol", Type: "string", Path: ".spec.protocol.type", Description: "The protocol that reaches it.", Wide: true},
			{Name: "Last-Seen", Type: "date", Path: ".status.lastSeen", Description: "When it last reported anything.", Wide: true},
		},
		Cells: typedCells(func(d *resource.Device) []any {
			return []any{
				d.Spec.NodeName, d.Spec.DeviceModelRef.Name, cmp.Or(d.Status.State, resource.Unknown),
				conditionStatus(d.Status.Conditions, "InSync"), alarmCell(d.Status.Alarms), reportedCell(d.Status.Twin), d.Spec.Protocol.Type, timestamp(d.Status.LastSeen),
			}
		}),
		Fields: map[string]func(any) string{
			"spec.nodeName":            typedField(func(d *resource.Device) string { return d.Spec.NodeName }),
			"spec.deviceModelRef.name": typedField(func(d *resource.Device) string { return d.Spec.DeviceModelRef.Name }),
			"status.state":             typedField(func(d *resource.Device) string { return cmp.Or(d.Status.State, resource.Unknown) }),
			"status.alarm": typedField(func(d *resource.Device) string {
				return cmp.Or(conditionStatusIfAny(d.Status.Conditions, resource.ConditionAlarm), "False")
			}),
			"status.inSync": typedField(func(d *resource.Device) string { return conditionStatus(d.Status.Conditions, resource.ConditionInSync) }),
		},
		Computed:     map[string]bool{"status.state": true, "status.inSync": true, "status.alarm": true},
		StoredFields: map[string]func(store.Object) string{"status.state": index.State, "status.inSync": index.InSync, "status.alarm": index.AlarmRaised},
		TableOmits: omittedFields{
			"metadata": nil,
			"spec":     {"desired": nil, "desiredUntil": nil, "propertyVisitors": nil},
			"status": {"twin": {"*": {
				"desired": nil, "override": nil, "refused": nil, "conflict": nil, "problem": nil, "inSync": nil,
				"reported": {"ver": nil, "ts": nil, "origin": nil, "for": nil},
			}}},
		},
	}
}

// resetDevice is Kind.Reset of a Device.
func resetDevice(obj any) []string {
	d := obj.(*resource.Device)
	if d.DesiredMeta == nil {
		return nil
	}
	d.DesiredMeta = nil
	return []string{"desiredMeta"}
}

// The reported values of a table row are shortened, since a value can be a file or an array.
const (
	cellValue = 24 // characters of one value
	cellWidth = 60 // bytes of all of them
)

// alarmCell is the cell with the most urgent alarm, of those that nobody knows of if there are any: temperature/hot, +2.
func alarmCell(raised []resource.AlarmStatus) string {
	if len(raised) == 0 {
		return ""
	}
	worst := slices.MinFunc(raised, resource.AlarmStatus.Compare)
	if len(raised) == 1 {
		return worst.Key()
	}
	return fmt.Sprintf("%s, +%d", worst.Key(), len(raised)-1)
}

// reportedCell is the cell with the reported values of a twin: power=ON,temperature=21.5.
func reportedCell(twin map[string]resource.TwinProperty) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(twin)) {
		value := twin[name].Reported
		if value == nil {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		if b.Len() >= cellWidth {
			b.WriteString("…")
			break
		}
		b.WriteString(name + "=" + printablePrefix(value.Value, cellValue))
	}
	return b.String()
}

// printablePrefix is the beginning of a text, without control characters, which a terminal would obey.
func printablePrefix(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '·'
		}
		return r
	}, text)
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most-1]) + "…"
}

func modelKind(k objects.Kind) Kind {
	return Kind{
		Kind: k, Plural: "devicemodels", Singular: "devicemodel", Short: []string{"dm"},
		Columns: []Column{
			{Name: "Properties", Type: "integer", Description: "How many properties it has."},
			{Name: "Status", Type: "string", Description: "Active, or Terminating while its deletion waits for those that hold it."},
			{Name: "Protocols", Type: "string", Description: "The protocols it has visitors for.", Wide: true},
		},
		Cells: typedCells(func(m *resource.DeviceModel) []any {
			var protocols []string
			for _, v := range m.Spec.PropertyVisitors {
				protocols = append(protocols, v.Protocol)
			}
			status := "Active"
			if m.Metadata.DeletionTimestamp != nil {
				status = "Terminating"
			}
			return []any{len(m.Spec.Properties), status, strings.Join(protocols, ",")}
		}),
	}
}

func nodeKind(k objects.Kind) Kind {
	return Kind{
		Kind: k, Plural: "nodes", Singular: "node", Short: []string{"no"},
		Node: nodeOfNode,
		Columns: []Column{
			{Name: "State", Type: "string", Path: ".status.state", Description: "online or offline, as the hub sees its connection; a second word says that its certificates were revoked."},
			{Name: "Version", Type: "string", Path: ".status.version", Description: "The version of its core."},
			{Name: "Fleet", Type: "string", Description: "The Fleet that owns it."},
			{Name: "Devices", Type: "integer", Path: ".status.devices", Description: "How many devices are bound to it."},
			{Name: "Applied", Type: "string", Description: "The version of its spec that its agent has applied, and the one that failed or is to come."},
			{Name: "Ready", Type: "string", Path: ".status.conditions[?(@.type==\"Ready\")].status", Description: "Whether its link to the hub is up.", Wide: true},
			{Name: "Last-Seen", Type: "date", Path: ".status.lastSeen", Description: "When its state last changed.", Wide: true},
			{Name: "Certificate-Ends", Type: "string", Path: ".status.certificateExpires", Description: "When the certificate ends with which it last connected.", Wide: true},
			{Name: "Agent", Type: "string", Path: ".status.agentVersion", Description: "The version of its agent.", Wide: true},
			{Name: "Image", Type: "string", Path: ".spec.os.image", Description: "The operating system that is wanted.", Wide: true},
		},
		Cells: typedCells(func(n *resource.Node) []any {
			fleet, _ := strings.CutPrefix(n.Metadata.Owner, "Fleet/")
			image := ""
			if n.Spec.OS != nil {
				image = n.Spec.OS.Image
			}
			return []any{nodeState(n.Status), n.Status.Version, fleet, n.Status.Devices, appliedSpec(n.Status), conditionStatus(n.Status.Conditions, resource.ConditionReady), timestamp(n.Status.LastSeen), timestamp(n.Status.CertificateExpires), n.Status.AgentVersion, image}
		}),
		Fields: map[string]func(any) string{
			"metadata.owner": typedField(func(n *resource.Node) string { return n.Metadata.Owner }),
			"status.state":   typedField(func(n *resource.Node) string { return cmp.Or(n.Status.State, resource.Unknown) }),
		},
		Computed:     map[string]bool{"status.state": true},
		StoredFields: map[string]func(store.Object) string{"status.state": index.State},
	}
}

// nodeState is a node's state, and with a comma why its certificates are taken no more: offline,Decommissioned.
func nodeState(s resource.NodeStatus) string {
	state := cmp.Or(s.State, resource.Unknown)
	if reason := s.RevokedReason(); reason != "" {
		state += "," + reason
	}
	return state
}

func fleetKind(k objects.Kind) Kind {
	return Kind{
		Kind: k, Plural: "fleets", Singular: "fleet", Short: []string{"fl"},
		Columns: []Column{
			{Name: "Image", Type: "string", Path: ".spec.template.spec.os.image", Description: "The operating system that its nodes are to have."},
			{Name: "Updated", Type: "string", Description: "How many of its nodes have the newest version of the template."},
			{Name: "Batch", Type: "string", Description: "The batch of the rollout that is under way."},
			{Name: "Reason", Type: "string", Path: ".status.rollout.reason", Description: "Why no more nodes get the version now."},
			{Name: "Template", Type: "string", Description: "The TemplateVersion that is being rolled out."},
			{Name: "Overlapping", Type: "string", Path: ".status.conditions[?(@.type==\"OverlappingSelectors\")].status", Description: "Whether other fleets want the same nodes."},
			{Name: "Owner", Type: "string", Description: "Who manages it.", Wide: true},
		},
		Cells: typedCells(func(f *resource.Fleet) []any {
			image := ""
			if os := f.Spec.Template.Spec.OS; os != nil {
				image = os.Image
			}
			r := f.Status.Rollout
			if r == nil {
				r = new(resource.RolloutStatus)
			}
			return []any{
				image, fmt.Sprintf("%d/%d", r.Updated, r.Nodes), fmt.Sprintf("%d/%d", r.Batch, r.Batches), r.Reason, cmp.Or(r.TemplateVersion, f.Metadata.Annotations["fleet-controller/templateVersion"]),
				conditionStatus(f.Status.Conditions, "OverlappingSelectors"), f.Metadata.Owner,
			}
		}),
	}
}

func templateVersionKind(k objects.Kind) Kind {
	return Kind{
		Kind: k, Plural: "templateversions", Singular: "templateversion", Short: []string{"tv"},
		WrittenBy: controllersText + ", from the Fleet's template",
		Columns: []Column{
			{Name: "Fleet", Type: "string", Path: ".spec.fleet", Description: "The Fleet whose template it was."},
			{Name: "References", Type: "integer", Description: "How many floating references it has frozen."},
		},
		Cells: typedCells(func(v *resource.TemplateVersion) []any { return []any{v.Spec.Fleet, len(v.Spec.References)} }),
		Fields: map[string]func(any) string{
			"spec.fleet": typedField(func(v *resource.TemplateVersion) string { return v.Spec.Fleet }),
		},
	}
}

func repositoryKind(k objects.Kind) Kind {
	return Kind{
		Kind: k, Plural: "repositories", Singular: "repository", Short: []string{"repo"},
		HasCredentials: true,
		Columns: []Column{
			{Name: "Type", Type: "string", Path: ".spec.type", Description: "git, http or oci."},
			{Name: "URL", Type: "string", Path: ".spec.url", Description: "Where it is."},
			{Name: "Accessible", Type: "string", Path: ".status.conditions[?(@.type==\"Accessible\")].status", Description: "Whether it could be reached."},
		},
		Cells: typedCells(func(r *resource.Repository) []any {
			return []any{cmp.Or(r.Spec.Type, "git"), r.Spec.URL, conditionStatus(r.Status.Conditions, "Accessible")}
		}),
	}
}

func resourceSyncKind(k objects.Kind) Kind {
	return Kind{
		Kind: k, Plural: "resourcesyncs", Singular: "resourcesync", Short: []string{"rs"},
		Columns: []Column{
			{Name: "Repository", Type: "string", Path: ".spec.repository", Description: "The Repository that is applied."},
			{Name: "Revision", Type: "string", Path: ".spec.targetRevision", Description: "The branch, tag or commit that is wanted."},
			{Name: "Synced", Type: "string", Path: ".status.conditions[?(@.type==\"Synced\")].status", Description: "Whether all its manifests are applied."},
			{Name: "Commit", Type: "string", Path: ".status.observedCommit", Description: "The commit that was applied last.", Wide: true},
		},
		Cells: typedCells(func(r *resource.ResourceSync) []any {
			return []any{r.Spec.Repository, r.Spec.TargetRevision, conditionStatus(r.Status.Conditions, "Synced"), r.Status.ObservedCommit}
		}),
	}
}

func upgradeKind(k objects.Kind) Kind {
	return Kind{
		Kind: k, Plural: "upgrades", Singular: "upgrade", Short: []string{"up"},
		Columns: []Column{
			{Name: "Version", Type: "string", Path: ".spec.version", Description: "The version that is wanted."},
			{Name: "Nodes", Type: "integer", Path: ".status.rollout.nodes", Description: "How many nodes there are."},
			{Name: "Done", Type: "integer", Path: ".status.rollout.succeeded", Description: "How many of them have the version."},
			{Name: "Upgrading", Type: "integer", Path: ".status.rollout.upgrading", Description: "How many have begun."},
			{Name: "Failed", Type: "integer", Path: ".status.rollout.failed", Description: "How many have failed."},
			{Name: "Away", Type: "integer", Path: ".status.rollout.away", Description: "How many went away soon after they had the version, and are not back."},
			{Name: "Reason", Type: "string", Path: ".status.rollout.reason", Description: "Why no more nodes begin."},
			{Name: "Message", Type: "string", Path: ".status.rollout.message", Description: "The same for people.", Wide: true},
		},
		Cells: typedCells(func(u *resource.Upgrade) []any {
			var r resource.UpgradeRollout
			if u.Status.Rollout != nil {
				r = *u.Status.Rollout
			}
			return []any{u.Spec.Goal(), r.Nodes, r.Succeeded, r.Upgrading, r.Failed, r.Away, r.Reason, r.Message}
		}),
		Fields: map[string]func(any) string{"action": typedField(func(u *resource.Upgrade) string { return u.Spec.Action() })},
	}
}

func artifactKind(k objects.Kind) Kind {
	return Kind{
		Kind: k, Plural: "artifacts", Singular: "artifact", Short: []string{"art"},
		Columns: []Column{
			{Name: "Version", Type: "string", Description: "The version of the programs."},
			{Name: "Programs", Type: "string", Description: "Which programs there are, for which architectures."},
			{Name: "Source", Type: "string", Path: ".spec.source", Description: "Where nodes fetch them, if not from the hub."},
		},
		Cells: typedCells(func(a *resource.Artifact) []any {
			m, _ := resource.ParseManifest([]byte(a.Spec.Manifest)) // it was validated when it was written
			var programs []string
			for _, p := range m.Programs {
				programs = append(programs, p.Name+"/"+p.Architecture)
			}
			return []any{m.Version, objects.JoinFirst(programs), a.Spec.Source}
		}),
	}
}

func enrollmentKind(k objects.Kind) Kind {
	return Kind{
		Kind: k, Plural: "enrollmentrequests", Singular: "enrollmentrequest", Short: []string{"er"},
		Columns: []Column{
			{Name: "Node", Type: "string", Path: ".spec.nodeName", Description: "The name that the node asks for."},
			{Name: "Approval", Type: "string", Path: ".spec.approval", Description: "What was decided."},
		},
		Cells: typedCells(func(e *resource.EnrollmentRequest) []any {
			return []any{cmp.Or(e.Spec.NodeName, e.Metadata.Name), cmp.Or(e.Spec.Approval, "Pending")}
		}),
		Fields: map[string]func(any) string{
			"spec.signerName": typedField(func(e *resource.EnrollmentRequest) string { return e.Spec.SignerName }),
		},
	}
}

func configurationKind(k objects.Kind) Kind {
	return Kind{
		Kind: k, Plural: "configurations", Singular: "configuration", Short: []string{"akric"},
		Columns: []Column{
			{Name: "Handler", Type: "string", Path: ".spec.discoveryHandler.name", Description: "The discovery handler that looks for devices."},
			{Name: "Capacity", Type: "integer", Path: ".spec.capacity", Description: "How many nodes may use one device at once."},
			{Name: "Instances", Type: "integer", Path: ".status.instances", Description: "How many devices are found."},
			{Name: "Ready", Type: "string", Description: "Whether all nodes have the handler."},
			{Name: "Accepted", Type: "string", Description: "Whether handlers accept the details."},
		},
		Cells: typedCells(func(c *resource.Configuration) []any {
			capacity := 1
			if c.Spec.Capacity != nil {
				capacity = *c.Spec.Capacity
			}
			return []any{
				c.Spec.DiscoveryHandler.Name, capacity, c.Status.Instances,
				conditionStatus(c.Status.Conditions, resource.ConditionHandlerReady), conditionStatus(c.Status.Conditions, resource.ConditionDetailsAccepted),
			}
		}),
	}
}

func instanceKind(k objects.Kind) Kind {
	return Kind{
		Kind: k, Plural: "instances", Singular: "instance", Short: []string{"akrii"},
		Columns: []Column{
			{Name: "Config", Type: "string", Path: ".spec.configurationName", Description: "The Configuration that asked for it."},
			{Name: "Shared", Type: "boolean", Path: ".spec.shared", Description: "Whether several nodes see the same device."},
			{Name: "Nodes", Type: "string", Description: "The nodes that see it."},
			{Name: "Visible", Type: "string", Description: "Whether any node sees it."},
			{Name: "Broker", Type: "string", Description: "Whether its broker runs on all nodes that use it, if it has one."},
			{Name: "Device", Type: "string", Path: ".status.device", Description: "The Device that was made of it."},
		},
		Cells: typedCells(func(n *resource.Instance) []any {
			return []any{
				n.Spec.ConfigurationName, n.Spec.Shared, objects.JoinFirst(n.Spec.Nodes), conditionStatus(n.Status.Conditions, resource.ConditionVisible),
				conditionStatusIfAny(n.Status.Conditions, resource.ConditionBrokerReady), n.Status.Device,
			}
		}),
		Fields: map[string]func(any) string{
			"spec.configurationName": typedField(func(n *resource.Instance) string { return n.Spec.ConfigurationName }),
			"spec.shortName":         typedField(func(n *resource.Instance) string { return n.Spec.ShortName }),
		},
	}
}

func secretKind(k objects.Kind) Kind {
	return Kind{
		Kind: k, Plural: "secrets", Singular: "secret",
		NoStatus: true,
		Columns: []Column{
			{Name: "Type", Type: "string", Description: "For whom the values are."},
			{Name: "Data", Type: "integer", Description: "How many values there are."},
		},
		Cells: typedCells(func(s *resource.Secret) []any { return []any{s.Type, len(s.Data)} }),
		Fields: map[string]func(any) string{
			"type": typedField(func(s *resource.Secret) string { return s.Type }),
		},
	}
}

func configMapKind(k objects.Kind) Kind {
	return Kind{
		Kind: k, Plural: "configmaps", Singular: "configmap", Short: []string{"cm"},
		NoStatus: true,
		Columns: []Column{
			{Name: "Data", Type: "integer", Description: "How many values there are."},
		},
		Cells: typedCells(func(c *resource.ConfigMap) []any { return []any{len(c.Data) + len(c.BinaryData)} }),
	}
}

// leaseKind is what the replicas of a controller elect a leader by.
func leaseKind(k objects.Kind) Kind {
	return Kind{
		Kind: k, Plural: "leases", Singular: "lease",
		NoStatus: true,
		Columns:  []Column{{Name: "Holder", Type: "string", Path: ".spec.holderIdentity", Description: "The program that holds it."}},
		Cells: typedCells(func(l *resource.Lease) []any {
			if l.Spec.HolderIdentity == nil {
				return []any{""}
			}
			return []any{*l.Spec.HolderIdentity}
		}),
	}
}

// ruleKind is what carries messages between two RuleEndpoints.
func ruleKind(k objects.Kind) Kind {
	return Kind{
		Kind: k, Plural: "rules", Singular: "rule",
		Columns: []Column{
			{Name: "Source", Type: "string", Path: ".spec.source", Description: "The RuleEndpoint that messages come from."},
			{Name: "Target", Type: "string", Path: ".spec.target", Description: "The RuleEndpoint that they go to."},
			{Name: "Ready", Type: "string", Description: "Whether it acts."},
			{Name: "Succeeded", Type: "integer", Path: ".status.successMessages", Description: "How many messages have reached the target."},
			{Name: "Failed", Type: "integer", Path: ".status.failMessages", Description: "How many have not."},
		},
		Cells: typedCells(func(r *resource.Rule) []any {
			return []any{
				r.Spec.Source, r.Spec.Target, conditionStatus(r.Status.Conditions, resource.ConditionReady), r.Status.SuccessMessages, r.Status.FailMessages,
			}
		}),
	}
}

func ruleEndpointKind(k objects.Kind) Kind {
	return Kind{
		Kind: k, Plural: "ruleendpoints", Singular: "ruleendpoint", Short: []string{"re"}, NoStatus: true,
		Columns: []Column{
			{Name: "Type", Type: "string", Path: ".spec.ruleEndpointType", Description: "rest, eventbus or servicebus."},
			{Name: "Port", Type: "string", Path: ".spec.properties.service_port", Description: "The port of a servicebus endpoint."},
		},
		Cells: typedCells(func(e *resource.RuleEndpoint) []any {
			return []any{e.Spec.RuleEndpointType, e.Spec.Properties[resource.EndpointPort]}
		}),
	}
}

// eventKind is the Event of the core group, which kubectl get events and kubectl describe ask for.
func eventKind(k objects.Kind) Kind {
	return Kind{
		Kind: k, Plural: "events", Singular: "event", Short: []string{"ev"},
		NoStatus: true, NoDefaultColumns: true,
		Node: nodeOfEvent,
		Columns: []Column{
			{Name: "Last Seen", Type: "string", Description: "How long ago it happened last."},
			{Name: "Type", Type: "string", Description: "Normal or Warning."},
			{Name: "Reason", Type: "string", Description: "What happened, in one word."},
			{Name: "Object", Type: "string", Description: "What it happened to."},
			{Name: "Count", Type: "string", Description: "How often it happened."},
			{Name: "Message", Type: "string", Description: "What happened the last time."},
			{Name: "First Seen", Type: "string", Description: "How long ago it happened first.", Wide: true},
			{Name: "Source", Type: "string", Description: "The program that saw it.", Wide: true},
			{Name: "Name", Type: "string", Description: "Name of the object.", Wide: true},
		},
		Cells: typedCells(func(e *resource.Event) []any {
			first, last, count := e.Times()
			return []any{
				last, e.Type, e.Reason, e.InvolvedObject.String(), strconv.Itoa(count), e.Message,
				first, e.Reporter(), e.Metadata.Name,
			}
		}),
		Fields: eventFields("involvedObject", "reportingComponent"),
	}
}

// eventsEventKind is the Event of the group events.k8s.io: the same objects, in which some fields have other names.
func eventsEventKind(of objects.Kind) Kind {
	k := eventKind(of)
	k.Group = "events.k8s.io"
	k.Fields = eventFields("regarding", "reportingController")
	k.FieldNames = map[string]string{
		"involvedObject": "regarding", "message": "note", "reportingComponent": "reportingController",
		"source": "deprecatedSource", "count": "deprecatedCount",
		"firstTimestamp": "deprecatedFirstTimestamp", "lastTimestamp": "deprecatedLastTimestamp",
	}
	return k
}

func eventFields(of, reporter string) map[string]func(any) string {
	object := func(get func(resource.ObjectReference) string) func(any) string {
		return typedField(func(e *resource.Event) string { return get(e.InvolvedObject) })
	}
	return map[string]func(any) string{
		"reason":                typedField(func(e *resource.Event) string { return e.Reason }),
		"type":                  typedField(func(e *resource.Event) string { return e.Type }),
		"source":                typedField((*resource.Event).Reporter),
		reporter:                typedField((*resource.Event).Reporter),
		of + ".kind":            object(func(o resource.ObjectReference) string { return o.Kind }),
		of + ".namespace":       object(func(o resource.ObjectReference) string { return o.Namespace }),
		of + ".name":            object(func(o resource.ObjectReference) string { return o.Name }),
		of + ".uid":             object(func(o resource.ObjectReference) string { return o.UID }),
		of + ".apiVersion":      object(func(o resource.ObjectReference) string { return o.APIVersion }),
		of + ".resourceVersion": object(func(o resource.ObjectReference) string { return o.ResourceVersion }),
		of + ".fieldPath":       object(func(o resource.ObjectReference) string { return o.FieldPath }),
	}
}

// nodeOfDevice is Kind.Node of a Device. One that is not bound to a node belongs to the node "", which only users with
// access to all nodes have.
func nodeOfDevice(_ context.Context, _ store.Reader, obj any) (string, bool) {
	return obj.(*resource.Device).Spec.NodeName, true
}

func nodeOfNode(_ context.Context, _ store.Reader, obj any) (string, bool) {
	return obj.(*resource.Node).Metadata.Name, true
}

// nodeOfEvent is Kind.Node of an Event: the node of the object that it is about.
func nodeOfEvent(ctx context.Context, r store.Reader, obj any) (string, bool) {
	about := obj.(*resource.Event).InvolvedObject
	switch about.Kind {
	case resource.KindNode:
		return about.Name, true
	case resource.KindDevice:
		var d resource.Device
		stored, err := r.Get(ctx, store.Key{Kind: about.Kind, Namespace: about.Namespace, Name: about.Name})
		if err == nil {
			err = json.Unmarshal(stored.Data, &d)
		}
		if err != nil || about.UID != "" && about.UID != d.Metadata.UID { // deleted: its node is unknown
			return "", true
		}
		return d.Spec.NodeName, true
	}
	return "", false
}

// appliedSpec is the version of a node's spec that is applied, and the one that is not: 7, "7, 8 failed" or "7, 8 is to come".
func appliedSpec(s resource.NodeStatus) string {
	text := s.RenderedVersion
	switch next := s.SpecVersion; {
	case s.Failed != nil:
		text += ", " + s.Failed.RenderedVersion + " failed"
	case next != "" && next != s.RenderedVersion && s.AgentVersion != "":
		text += ", " + next + " is to come"
	}
	return strings.TrimPrefix(text, ", ")
}
