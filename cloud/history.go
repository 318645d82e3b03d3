// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"encoding/json"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/history/requests"
	"github.com/edgebus/edgebus/cloud/history"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics/resource"
)

// openHistory opens the copies of the nodes' histories, and answers requests for them that reach the broker before the tree does.
func openHistory(
	cfg configs.Hub, reader store.Reader, namespaceOf func(device string) string, tree broker.Tree, publish func(broker.Message), log zerolog.Logger,
) (*history.NodeCopies, broker.Tree, error) {
	copies, err := history.New(history.Options{
		Dir: cfg.Data.Dir, Bytes: int64(cfg.Limits.History.Bytes), Reader: reader, Tree: tree, Publish: publish, Log: log,
	})
	if err != nil {
		return nil, nil, err
	}
	return copies, requests.New(requests.Options{Find: findHistory(reader, copies, namespaceOf), Tree: copies, Publish: publish, Log: log}), nil
}

// findHistory returns a Device of a node with its model, and the copy of its history.
func findHistory(reader store.Reader, copies *history.NodeCopies, namespaceOf func(device string) string) func(context.Context, string, string) (resource.Bundle, requests.Source, error) {
	return func(ctx context.Context, node, device string) (b resource.Bundle, source requests.Source, err error) {
		o, err := reader.Get(ctx, store.Key{Kind: resource.KindDevice, Namespace: namespaceOf(device), Name: device})
		if err != nil {
			return b, nil, err
		}
		if err := json.Unmarshal(o.Data, &b.Device); err != nil {
			return b, nil, err
		}
		if b.Device.Spec.NodeName != node {
			return b, nil, resource.Errorf(resource.NotFound, "", "device %q does not belong to node %s", device, node)
		}
		if o, err = reader.Get(ctx, store.Key{Kind: resource.KindDeviceModel, Namespace: o.Namespace, Name: b.Device.Spec.DeviceModelRef.Name}); err != nil {
			return b, nil, err
		}
		return b, copies.Of(node), json.Unmarshal(o.Data, &b.Model)
	}
}
