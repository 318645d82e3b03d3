// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"time"
	"unicode/utf8"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/calls"
	"github.com/edgebus/edgebus/cloud/api"
	"github.com/edgebus/edgebus/topics"
)

// commandCaller sends a command that came over HTTP, by the rights that its sender has over MQTT, and waits for its answer.
func commandCaller(br *broker.Broker, commands *calls.Calls) func(context.Context, broker.Identity, string, []byte, time.Duration) (api.CommandAnswer, error) {
	return func(ctx context.Context, id broker.Identity, topic string, payload []byte, timeout time.Duration) (api.CommandAnswer, error) {
		if err := br.MayPublish(id, topic); err != nil {
			return api.CommandAnswer{}, err
		}
		answers := make(chan broker.Message, 1)
		m := broker.Message{Topic: topic, Payload: payload, Publisher: &id, Props: broker.Properties{Expiry: uint32((timeout + time.Second - 1) / time.Second)}}
		commands.Ask(m, func(m broker.Message) { answers <- m })
		select {
		case m = <-answers:
		case <-ctx.Done():
			return api.CommandAnswer{}, ctx.Err()
		}
		answer := api.CommandAnswer{Payload: string(m.Payload)}
		if !utf8.Valid(m.Payload) {
			answer.Payload, answer.Bytes = "", m.Payload
		}
		for _, p := range m.Props.User {
			switch p.Key {
			case topics.PropCode:
				answer.Code = topics.AnswerCode(p.Value)
			case topics.PropError:
				answer.Error = p.Value
			}
		}
		return answer, nil
	}
}
