// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/edgebus/edgebus/broker/history"
	"github.com/edgebus/edgebus/topics/resource"
)

// PastValue is the value that a property had from a time on, as text in the form of the property's type.
type PastValue struct {
	Property, Text string
	Known          bool // false: it had none, or nobody knows
	At             time.Time
}

// ReadPast returns what all properties of a Device were since a time, in the order of time: what changed, or where there was more than an
// answer may have, means.
func ReadPast(ctx context.Context, b resource.Bundle, source Source, since, now time.Time) (list []PastValue, err error) {
	for _, p := range b.Model.Spec.Properties {
		q := history.Query{
			SeriesKey: history.SeriesKey{Device: b.Device.Metadata.UID, Property: p.Name}, From: since.UnixMilli(), To: now.UnixMilli() + 1,
			Points: resource.MaxHistoryPoints, Floor: b.HistoryRule(p.Name).Floor(now),
		}
		if q.From >= q.To || q.Floor >= q.To {
			continue
		}
		a, err := source.Read(ctx, q)
		if err != nil {
			return nil, err
		}
		for i, at := range a.Times {
			if i > 0 && a.Values[i] == a.Values[i-1] {
				continue // a plot's last point: it is so still
			}
			text, known := valueText(p.Type, a.Values[i])
			list = append(list, PastValue{Property: p.Name, Text: text, Known: known, At: time.UnixMilli(at)})
		}
	}
	slices.SortStableFunc(list, func(a, b PastValue) int { return a.At.Compare(b.At) })
	return list, nil
}

// valueText is a value of an answer in the form of its type.
func valueText(t resource.DataType, v any) (text string, known bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case float64:
		switch {
		case t == resource.TypeBoolean:
			return strconv.FormatBool(v >= 0.5), true
		case t == resource.TypeInt:
			return strconv.FormatFloat(v, 'f', 0, 64), true
		}
		return strconv.FormatFloat(v, 'g', -1, 64), true
	}
	return "", false
}
