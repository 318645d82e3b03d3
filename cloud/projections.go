// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/cloud/control"
	"github.com/edgebus/edgebus/cloud/discovery"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/rules"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/twin"
	"github.com/edgebus/edgebus/cloud/upgrade"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// newProjections are what nodes are given of objects, beside their Devices.
func newProjections(reader *objects.Controller) []twin.Projection {
	return []twin.Projection{
		{Kind: resource.KindRenderedSpec, Documents: func(ctx context.Context, o store.Object) ([]twin.Document, error) {
			return renderedSpecDocuments(ctx, reader, o)
		}},
		{Kind: resource.KindUpgradeOrder, Documents: func(_ context.Context, o store.Object) ([]twin.Document, error) {
			return []twin.Document{{Node: o.Name, Key: topics.Address{Kind: topics.KindUpgrade}.Key(), Value: o.Data}}, nil
		}},
		{Kind: discovery.OrderKind, Documents: func(ctx context.Context, o store.Object) ([]twin.Document, error) {
			return discoveryOrderDocuments(ctx, reader, o)
		}},
		{Kind: rules.OrderKind, Documents: func(_ context.Context, o store.Object) ([]twin.Document, error) {
			node, key, value, err := rules.Documents(o)
			return []twin.Document{{Node: node, Key: key, Value: value}}, err
		}},
	}
}

// createNode makes the Node of a node that was let in and has none.
func createNode(as *objects.Controller) func(ctx context.Context, name string) error {
	return func(ctx context.Context, name string) error {
		_, err := objects.Create(ctx, as, &resource.Node{Metadata: resource.Meta{Name: name}})
		return err
	}
}

// newProjectionControllers calls the twins with the objects that are projected when they change.
func newProjectionControllers(tw *twin.Twins, rows []twin.Projection) (list []control.Controller) {
	for _, row := range rows {
		list = append(list, control.Controller{
			Name: "project-" + strings.ToLower(row.Kind), Watches: []control.Watch{{Kind: row.Kind}}, Workers: 4, Reconcile: tw.Project,
		})
	}
	return list
}

// followUpgradeReports keeps a record of what each node reports of upgrades, for their controller.
func followUpgradeReports(tw *twin.Twins, st store.Store, log zerolog.Logger) func(context.Context) error {
	return func(ctx context.Context) error {
		reports, records := tw.Reports(topics.KindUpgradeStatus), objects.Records(st)
		defer reports.Close()
		storeReports(ctx, reports.Next, func(r twin.Report) error {
			err := upgrade.StoreReport(ctx, st, records, r.Node, r.Value)
			if err != nil {
				log.Warn().Err(err).Str("node", r.Node).Msg("what a node reports of an upgrade can't be stored, and is stored later")
			}
			return err
		})
		return nil
	}
}

// reportRetry is the wait before a report that could not be stored is tried again.
var reportRetry = backoff.Backoff{Min: time.Second, Max: time.Minute}

// storeReports stores reports until ctx ends. One that can't be stored is tried again after a while, and holds up no other node's.
func storeReports(ctx context.Context, next func(context.Context) ([]twin.Report, error), put func(twin.Report) error) {
	failed := make(map[string]twin.Report) // the newest of each node whose report could not be stored
	try := func(r twin.Report) {
		delete(failed, r.Node)
		if put(r) != nil {
			failed[r.Node] = r
		}
	}
	var again backoff.Retry
	for ctx.Err() == nil {
		wait, cancel := ctx, context.CancelFunc(func() {})
		if len(failed) > 0 {
			wait, cancel = context.WithDeadline(ctx, again.Due())
		}
		list, err := next(wait)
		cancel()
		if err != nil { // it is time to try again, or the hub stops
			for _, r := range slices.Collect(maps.Values(failed)) { // try changes it
				try(r)
			}
		}
		for _, r := range list {
			try(r)
		}
		switch now := time.Now(); {
		case len(failed) == 0:
			again.Succeeded()
		case !now.Before(again.Due()):
			again.Failed(reportRetry, now)
		}
	}
}

// renderedSpecDocuments is what a node gets of its RenderedSpec: the Secrets that it refers to, and then itself.
func renderedSpecDocuments(ctx context.Context, reader *objects.Controller, o store.Object) (list []twin.Document, err error) {
	spec := twin.Document{Node: o.Name, Key: topics.Address{Kind: topics.KindSpec}.Key(), Value: o.Data}
	if !bytes.Contains(o.Data, []byte(`"secret":`)) { // most have none
		return []twin.Document{spec}, nil
	}
	var rendered resource.RenderedSpec
	if err := json.Unmarshal(o.Data, &rendered); err != nil {
		return []twin.Document{spec}, fmt.Errorf("the stored %s can't be read: %w", o.Key, err)
	}
	var failed []error
	for _, name := range rendered.Secrets() {
		values, err := secretValues(ctx, reader, name)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		list = append(list, twin.Document{Node: o.Name, Key: topics.Address{Kind: topics.KindSecret, Device: name}.Key(), Value: values})
	}
	return append(list, spec), errors.Join(failed...)
}

// secretValues is the payload of secrets/{secret}.
func secretValues(ctx context.Context, reader *objects.Controller, topic string) ([]byte, error) {
	namespace, name, _ := strings.Cut(topic, ".")
	secret, err := objects.Get[resource.Secret](ctx, reader, store.Key{Namespace: namespace, Name: name})
	if err != nil {
		return nil, err
	}
	return json.Marshal(resource.SecretValues{Version: secret.Version(), Data: secret.Data})
}

// discoveryOrderDocuments is what nodes get of a Configuration's Order: the values that it refers to, and then what to look for.
func discoveryOrderDocuments(ctx context.Context, reader *objects.Controller, o store.Object) (list []twin.Document, err error) {
	var order discovery.Order
	if err := json.Unmarshal(o.Data, &order); err != nil {
		return nil, fmt.Errorf("the stored %s can't be read: %w", o.Key, err)
	}
	request, err := json.Marshal(order.Request)
	if err != nil {
		return nil, err
	}
	var values []byte
	if order.Request.Secrets != "" {
		values, err = discovery.SecretValues(ctx, reader, order)
	}
	for _, node := range order.Nodes {
		if values != nil {
			list = append(list, twin.Document{Node: node, Key: topics.Address{Kind: topics.KindDiscoverySecret, Device: o.Name}.Key(), Value: values})
		}
		list = append(list, twin.Document{Node: node, Key: topics.Address{Kind: topics.KindDiscovery, Device: o.Name}.Key(), Value: request})
	}
	return list, err
}
