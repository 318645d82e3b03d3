package api

import (
	"context"
	"errors"
	"reflect"
	"strings"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// reportsControllers are who writes the status of what controllers act on.
const reportsControllers = "controllers (role controller)"

func nodeKind() Kind {
	return Kind{
		Name: resource.KindNode, Plural: "nodes", Singular: "node", Short: []string{"no"},
		Reports:     "the node itself (role node) and controllers (role controller)",
		New:         func() any { return new(resource.Node) },
		Validate:    rules(resource.Node.Validate, nil),
		Doubts:      specIsKept,
		CheckStatus: func(obj any) error { return obj.(*resource.Node).CheckStatus() },
		Node:        ofNode,
		Columns: []Column{
			{Name: "State", Type: "string", Path: ".status.state", Description: "online or offline, as the hub sees its connection."},
			{Name: "Version", Type: "string", Path: ".status.version", Description: "The version of its core."},
			{Name: "Fleet", Type: "string", Description: "The Fleet that owns it."},
			{Name: "Devices", Type: "integer", Path: ".status.devices", Description: "How many devices are bound to it."},
			{Name: "Ready", Type: "string", Path: ".status.conditions[?(@.type==\"Ready\")].status", Description: "Whether its link to the hub is up.", Wide: true},
			{Name: "Last-Seen", Type: "string", Path: ".status.lastSeen", Description: "When its state last changed.", Wide: true},
			{Name: "Image", Type: "string", Path: ".spec.os.image", Description: "The operating system that is wanted.", Wide: true},
		},
		Cells: cells(func(n *resource.Node) []any {
			fleet, _ := strings.CutPrefix(n.Metadata.Owner, "Fleet/")
			image := ""
			if n.Spec.OS != nil {
				image = n.Spec.OS.Image
			}
			return []any{orUnknown(n.Status.State), n.Status.Version, fleet, n.Status.Devices, condition(n.Status.Conditions, resource.ConditionReady), n.Status.LastSeen, image}
		}),
		Fields: map[string]func(any) string{
			"metadata.owner": field(func(n *resource.Node) string { return n.Metadata.Owner }),
		},
	}
}

// specIsKept says of a Node that something is wanted of that nothing does it yet.
func specIsKept(_ context.Context, _ store.Reader, _, next any) []string {
	if reflect.ValueOf(next.(*resource.Node).Spec).IsZero() {
		return nil
	}
	return []string{"spec: nothing acts on it yet: the hub checks and keeps it, and the node does not change because of it"}
}

// doubtNodes doubts that nodes were to be named that aren't there. They may be to come.
func doubtNodes[T any](field string, names func(*T) []string) func(context.Context, store.Reader, any, any) []string {
	return func(ctx context.Context, r store.Reader, old, next any) (doubts []string) {
		var missing []string
		before := make(map[string]bool)
		if prev, ok := old.(*T); ok {
			for _, name := range names(prev) {
				before[name] = true
			}
		}
		for _, name := range names(next.(*T)) {
			if !before[name] && !there(ctx, r, store.Key{Kind: resource.KindNode, Name: name}) {
				missing = append(missing, name)
			}
		}
		if len(missing) == 0 {
			return nil
		}
		return []string{field + ": there is no Node " + someOf(missing)}
	}
}

// there says whether an object exists, or may.
func there(ctx context.Context, r store.Reader, key store.Key) bool {
	_, err := r.Get(ctx, key)
	return !errors.Is(err, resource.NotFound)
}

func fleetKind() Kind {
	return Kind{
		Name: resource.KindFleet, Plural: "fleets", Singular: "fleet", Short: []string{"fl"},
		Kept: true, Reports: reportsControllers,
		New:      func() any { return new(resource.Fleet) },
		Validate: rules(resource.Fleet.Validate, nil),
		Columns: []Column{
			{Name: "Image", Type: "string", Path: ".spec.template.spec.os.image", Description: "The operating system that its nodes are to have."},
			{Name: "Template", Type: "string", Description: "The TemplateVersion that is being rolled out."},
			{Name: "Overlapping", Type: "string", Path: ".status.conditions[?(@.type==\"OverlappingSelectors\")].status", Description: "Whether other fleets want the same nodes."},
			{Name: "Owner", Type: "string", Description: "Who manages it.", Wide: true},
		},
		Cells: cells(func(f *resource.Fleet) []any {
			image := ""
			if os := f.Spec.Template.Spec.OS; os != nil {
				image = os.Image
			}
			return []any{
				image, f.Metadata.Annotations["fleet-controller/templateVersion"],
				condition(f.Status.Conditions, "OverlappingSelectors"), f.Metadata.Owner,
			}
		}),
	}
}

func templateVersionKind() Kind {
	return Kind{
		Name: resource.KindTemplateVersion, Plural: "templateversions", Singular: "templateversion", Short: []string{"tv"},
		Kept: true, Reports: reportsControllers,
		Made:     "controllers (role controller), from the Fleet's template",
		New:      func() any { return new(resource.TemplateVersion) },
		Validate: rules(resource.TemplateVersion.Validate, resource.TemplateVersion.CheckUpdate),
		Columns: []Column{
			{Name: "Fleet", Type: "string", Path: ".spec.fleet", Description: "The Fleet whose template it was."},
			{Name: "References", Type: "integer", Description: "How many floating references it has frozen."},
		},
		Cells: cells(func(v *resource.TemplateVersion) []any { return []any{v.Spec.Fleet, len(v.Spec.References)} }),
		Fields: map[string]func(any) string{
			"spec.fleet": field(func(v *resource.TemplateVersion) string { return v.Spec.Fleet }),
		},
	}
}

func repositoryKind() Kind {
	return Kind{
		Name: resource.KindRepository, Plural: "repositories", Singular: "repository", Short: []string{"repo"},
		Kept: true, Reports: reportsControllers,
		New:      func() any { return new(resource.Repository) },
		Validate: rules(resource.Repository.Validate, nil), Credentials: true,
		Columns: []Column{
			{Name: "Type", Type: "string", Path: ".spec.type", Description: "git, http or oci."},
			{Name: "URL", Type: "string", Path: ".spec.url", Description: "Where it is."},
			{Name: "Accessible", Type: "string", Path: ".status.conditions[?(@.type==\"Accessible\")].status", Description: "Whether it could be reached."},
		},
		Cells: cells(func(r *resource.Repository) []any {
			kind := r.Spec.Type
			if kind == "" {
				kind = "git"
			}
			return []any{kind, r.Spec.URL, condition(r.Status.Conditions, "Accessible")}
		}),
	}
}

func resourceSyncKind() Kind {
	return Kind{
		Name: resource.KindResourceSync, Plural: "resourcesyncs", Singular: "resourcesync", Short: []string{"rs"},
		Kept: true, Reports: reportsControllers,
		New:      func() any { return new(resource.ResourceSync) },
		Validate: rules(resource.ResourceSync.Validate, nil),
		Columns: []Column{
			{Name: "Repository", Type: "string", Path: ".spec.repository", Description: "The Repository that is applied."},
			{Name: "Revision", Type: "string", Path: ".spec.targetRevision", Description: "The branch, tag or commit that is wanted."},
			{Name: "Synced", Type: "string", Path: ".status.conditions[?(@.type==\"Synced\")].status", Description: "Whether all its manifests are applied."},
			{Name: "Commit", Type: "string", Path: ".status.observedCommit", Description: "The commit that was applied last.", Wide: true},
		},
		Cells: cells(func(r *resource.ResourceSync) []any {
			return []any{r.Spec.Repository, r.Spec.TargetRevision, condition(r.Status.Conditions, "Synced"), r.Status.ObservedCommit}
		}),
	}
}

func upgradeKind() Kind {
	return Kind{
		Name: resource.KindUpgrade, Plural: "upgrades", Singular: "upgrade", Short: []string{"up"},
		Kept: true, Reports: reportsControllers,
		New:      func() any { return new(resource.Upgrade) },
		Validate: rules(resource.Upgrade.Validate, resource.Upgrade.CheckUpdate), StatusRules: true,
		Doubts:      doubtNodes("spec.nodeNames", func(u *resource.Upgrade) []string { return u.Spec.NodeNames }),
		CheckStatus: func(obj any) error { return obj.(*resource.Upgrade).CheckStatus() },
		Columns: []Column{
			{Name: "Version", Type: "string", Path: ".spec.version", Description: "The version that is wanted."},
			{Name: "Nodes", Type: "integer", Description: "How many nodes were asked."},
			{Name: "Done", Type: "integer", Description: "How many of them have the version."},
		},
		Cells: cells(func(u *resource.Upgrade) []any {
			done := 0
			for _, n := range u.Status.Nodes {
				if last := len(n.History) - 1; last >= 0 && n.History[last].OperationStatus == resource.UpgradeSuccess {
					done++
				}
			}
			return []any{u.Spec.Version, len(u.Status.Nodes), done}
		}),
	}
}

func enrollmentKind() Kind {
	return Kind{
		Name: resource.KindEnrollmentRequest, Plural: "enrollmentrequests", Singular: "enrollmentrequest", Short: []string{"er"},
		Kept: true, Reports: reportsControllers,
		New:      func() any { return new(resource.EnrollmentRequest) },
		Validate: rules(resource.EnrollmentRequest.Validate, resource.EnrollmentRequest.CheckUpdate),
		Columns: []Column{
			{Name: "Node", Type: "string", Path: ".spec.nodeName", Description: "The name that the node asks for."},
			{Name: "Approval", Type: "string", Path: ".spec.approval", Description: "What was decided."},
		},
		Cells: cells(func(e *resource.EnrollmentRequest) []any {
			node, approval := e.Spec.NodeName, e.Spec.Approval
			if node == "" {
				node = e.Metadata.Name
			}
			if approval == "" {
				approval = "Pending"
			}
			return []any{node, approval}
		}),
	}
}
