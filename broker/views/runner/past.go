// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"time"

	"github.com/edgebus/edgebus/broker/history/requests"
	"github.com/edgebus/edgebus/broker/views"
	"github.com/edgebus/edgebus/topics/resource"
)

// PastOf makes Options.Past of what finds a Device and its history.
func PastOf(find func(ctx context.Context, node, device string) (resource.Bundle, requests.Source, error)) func(context.Context, string, string, time.Time) ([]views.Sample, error) {
	return func(ctx context.Context, node, device string, since time.Time) ([]views.Sample, error) {
		b, source, err := find(ctx, node, device)
		if err != nil {
			return nil, err
		}
		list, err := requests.ReadPast(ctx, b, source, since, time.Now())
		if err != nil {
			return nil, err
		}
		samples := make([]views.Sample, len(list))
		for i, v := range list {
			samples[i] = views.Sample{Property: v.Property, Text: v.Text, Known: v.Known, At: v.At}
		}
		return samples, nil
	}
}
