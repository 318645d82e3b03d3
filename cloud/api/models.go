package api

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// maxModels bounds the DeviceModels that are remembered.
const maxModels = 256

// models remembers DeviceModels as they were read last, with their revisions: many Devices have the same model, and
// a write of one would spend most of its time on reading a large model again. What it gives is always what the
// store has. It is shared: nobody may change it.
type models struct {
	mu   sync.Mutex
	read map[store.Key]modelRead
}

type modelRead struct {
	rev   uint64
	model *resource.DeviceModel
}

// get reads a model, or fails as the store does.
func (m *models) get(ctx context.Context, r store.Reader, key store.Key) (*resource.DeviceModel, error) {
	stored, err := r.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if known, ok := m.read[key]; ok && known.rev == stored.Rev {
		return known.model, nil
	}
	model := new(resource.DeviceModel)
	if err := json.Unmarshal(stored.Data, model); err != nil {
		return nil, fmt.Errorf("the stored %s can't be read: %w", key, err)
	}
	if m.read == nil || len(m.read) >= maxModels {
		m.read = make(map[store.Key]modelRead)
	}
	m.read[key] = modelRead{stored.Rev, model}
	return model, nil
}
