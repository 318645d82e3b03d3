// SPDX-License-Identifier: Apache-2.0

// Command kubeedge is a mapper made with KubeEdge's mapper-framework, whose client, server and conversions it links unchanged. Its devices are
// directories, given as configData.dir, and their properties files there, given as configData.file: what a file has is reported, and a desired
// value is written to it. A property with readOnly: true is never written, as of a device that ignores what it is told; a directory that is missing is a device
// that says that it is offline. A mapper is started with --config-file, as KubeEdge's are.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	dmi "github.com/kubeedge/api/apis/dmi/v1beta1"
	"github.com/kubeedge/mapper-framework/pkg/common"
	"github.com/kubeedge/mapper-framework/pkg/config"
	"github.com/kubeedge/mapper-framework/pkg/grpcclient"
	"github.com/kubeedge/mapper-framework/pkg/grpcserver"
	"github.com/kubeedge/mapper-framework/pkg/util/parse"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	c, err := config.Parse()
	if err != nil {
		return err
	}
	devices, models, err := grpcclient.RegisterMapper(true)
	if err != nil {
		return err
	}
	fmt.Printf("registered with %d devices and %d models\n", len(devices), len(models))
	p := &panel{devices: map[string]*device{}, models: map[string]common.DeviceModel{}}
	if err := p.DevInit(devices, models); err != nil {
		return err
	}
	server := grpcserver.NewServer(grpcserver.Config{SockPath: c.GrpcServer.SocketPath}, p)
	return server.Start()
}

// device is one of the mapper's.
type device struct {
	instance common.DeviceInstance
	dir      string
	stop     context.CancelFunc
}

// panel has the devices; its methods are those that the framework calls.
type panel struct {
	mu      sync.Mutex
	devices map[string]*device
	models  map[string]common.DeviceModel
}

func (p *panel) DevInit(devices []*dmi.Device, models []*dmi.DeviceModel) error {
	for _, m := range models {
		model := parse.GetDeviceModelFromGrpc(m)
		p.UpdateModel(&model)
	}
	for _, d := range devices {
		model, err := p.GetModel(parse.GetResourceID(d.Namespace, d.Spec.DeviceModelReference))
		if err != nil {
			return err
		}
		instance, err := parse.GetDeviceFromGrpc(d, &model)
		if err != nil {
			return err
		}
		if instance.PProtocol, err = parse.BuildProtocolFromGrpc(d); err != nil {
			return err
		}
		p.UpdateDev(&model, instance)
	}
	return nil
}

func (p *panel) UpdateDev(model *common.DeviceModel, instance *common.DeviceInstance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.devices[instance.ID]; old != nil {
		old.stop()
	}
	var protocol struct {
		ConfigData struct {
			Dir  string `json:"dir"`
			Unit int    `json:"unit"`
		} `json:"configData"`
	}
	if err := json.Unmarshal(instance.PProtocol.ConfigData, &protocol); err != nil {
		fmt.Println("bad configData of", instance.ID, err)
	}
	ctx, stop := context.WithCancel(context.Background())
	d := &device{instance: *instance, dir: protocol.ConfigData.Dir, stop: stop}
	p.devices[instance.ID] = d
	p.models[model.ID] = *model
	fmt.Println("device", instance.ID, "of", model.ID, "unit", protocol.ConfigData.Unit)
	go d.run(ctx)
}

// run writes the desired values and reports, as the framework's own device does.
func (d *device) run(ctx context.Context) {
	go d.every(ctx, time.Duration(d.instance.Status.ReportCycle)*time.Millisecond, func() error {
		state := common.DeviceStatusOK
		if _, err := os.Stat(d.dir); err != nil {
			state = common.DeviceStatusOffline
		}
		return grpcclient.ReportDeviceStates(&dmi.ReportDeviceStatesRequest{DeviceName: d.instance.Name, DeviceNamespace: d.instance.Namespace, State: state})
	})
	for _, twin := range d.instance.Twins {
		var visitor struct {
			ConfigData struct {
				File     string `json:"file"`
				ReadOnly bool   `json:"readOnly"`
			} `json:"configData"`
		}
		if twin.Property == nil || json.Unmarshal(twin.Property.Visitors, &visitor) != nil {
			fmt.Println("bad visitor of", d.instance.ID, twin.PropertyName)
			continue
		}
		file := filepath.Join(d.dir, visitor.ConfigData.File)
		if want := twin.ObservedDesired.Value; want != "" && twin.Property.PProperty.AccessMode != "ReadOnly" && !visitor.ConfigData.ReadOnly {
			fmt.Println("write", d.instance.ID, twin.PropertyName, want)
			if err := os.WriteFile(file, []byte(want), 0o600); err != nil {
				fmt.Println(err)
			}
		}
		go d.every(ctx, time.Duration(twin.Property.CollectCycle)*time.Millisecond, func() error {
			value, err := os.ReadFile(file)
			if err != nil {
				return nil // the device has no value: a mapper of the framework reports nothing then
			}
			text, wanted := strings.TrimSpace(string(value)), twin.ObservedDesired.Value
			said := map[string]*common.MsgTwin{twin.PropertyName: {
				Actual: &common.TwinValue{Value: &text}, Expected: &common.TwinValue{Value: &wanted}, Metadata: &common.TypeMetadata{Type: twin.ObservedDesired.Metadata.Type},
			}}
			return grpcclient.ReportDeviceStatus(&dmi.ReportDeviceStatusRequest{
				DeviceName: d.instance.Name, DeviceNamespace: d.instance.Namespace, ReportedDevice: &dmi.DeviceStatus{Twins: parse.ConvMsgTwinToGrpc(said)},
			})
		})
	}
}

func (d *device) every(ctx context.Context, cycle time.Duration, report func() error) {
	if cycle == 0 {
		cycle = common.DefaultReportCycle
	}
	ticker := time.NewTicker(cycle)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := report(); err != nil {
			fmt.Println("report of", d.instance.ID, "failed:", err)
		}
	}
}

func (p *panel) RemoveDevice(id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.devices[id]
	if d == nil {
		return fmt.Errorf("device %s not found", id)
	}
	d.stop()
	delete(p.devices, id)
	fmt.Println("removed", id)
	return nil
}

func (p *panel) GetDevice(id string) (any, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d := p.devices[id]; d != nil {
		return d, nil
	}
	return nil, fmt.Errorf("device %s not found", id)
}

func (p *panel) GetModel(id string) (common.DeviceModel, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m, known := p.models[id]; known {
		return m, nil
	}
	return common.DeviceModel{}, fmt.Errorf("model %s not found", id)
}

func (p *panel) UpdateModel(m *common.DeviceModel) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.models[m.ID] = *m
}

func (p *panel) RemoveModel(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.models, id)
}

var errNotUsed = errors.New("not used here")

func (p *panel) DevStart()                                            { /* UpdateDev does */ }
func (p *panel) UpdateDevTwins(string, []common.Twin) error           { return errNotUsed }
func (p *panel) DealDeviceTwinGet(string, string) (any, error)        { return nil, errNotUsed }
func (p *panel) WriteDevice(string, string, string, string) error     { return errNotUsed }
func (p *panel) GetTwinResult(string, string) (string, string, error) { return "", "", errNotUsed }
func (p *panel) GetDeviceMethod(string) (map[string][]string, map[string]string, error) {
	return nil, nil, errNotUsed
}
