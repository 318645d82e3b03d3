// SPDX-License-Identifier: Apache-2.0

// Command controller is a controller of Devices as its authors would write it, with controller-runtime: it is elected by a Lease, watches
// Devices, makes a ConfigMap that a Device owns, tells it by an Event, and takes the ConfigMap away before the Device goes. Then it does all of
// that once, at the server that its argument names, and ends.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const (
	namespace = "default"
	finalizer = "example.com/controller"
	lease     = "devices.example.com"
	patience  = 2 * time.Minute
)

func main() {
	log.SetLogger(zap.New(zap.UseDevMode(true)))
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: controller URL-OF-THE-HUB")
		os.Exit(2)
	}
	if err := run(ctrl.SetupSignalHandler(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func device(name string) *unstructured.Unstructured {
	d := &unstructured.Unstructured{}
	d.SetGroupVersionKind(schema.GroupVersionKind{Group: "edgebus.io", Version: "v1alpha1", Kind: "Device"})
	d.SetNamespace(namespace)
	d.SetName(name)
	return d
}

func run(ctx context.Context, url string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	config := &rest.Config{Host: url}
	m, err := ctrl.NewManager(config, ctrl.Options{
		LeaderElection: true, LeaderElectionID: lease, LeaderElectionNamespace: namespace, LeaderElectionReleaseOnCancel: true,
		Metrics: server.Options{BindAddress: "0"},
	})
	if err != nil {
		return err
	}
	r := &reconciler{Client: m.GetClient(), events: m.GetEventRecorder("example-controller")}
	if err := ctrl.NewControllerManagedBy(m).For(device("")).Owns(&core.ConfigMap{}).Named("devices").Complete(r); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- m.Start(ctx) }()
	err = reconcileDevice(ctx, m)
	cancel()
	return errors.Join(err, <-ended)
}

type reconciler struct {
	client.Client
	events events.EventRecorder
}

func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	d := device("")
	if err := r.Get(ctx, request.NamespacedName, d); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	owned := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Namespace: namespace, Name: d.GetName()}}
	if !d.GetDeletionTimestamp().IsZero() {
		if err := r.Delete(ctx, owned); client.IgnoreNotFound(err) != nil {
			return ctrl.Result{}, err
		}
		if controllerutil.RemoveFinalizer(d, finalizer) {
			return ctrl.Result{}, r.Update(ctx, d)
		}
		return ctrl.Result{}, nil
	}
	if controllerutil.AddFinalizer(d, finalizer) {
		if err := r.Update(ctx, d); err != nil {
			return ctrl.Result{}, err
		}
	}
	done, err := controllerutil.CreateOrUpdate(ctx, r.Client, owned, func() error {
		owned.Data = map[string]string{"device": d.GetName()}
		return controllerutil.SetControllerReference(d, owned, r.Scheme())
	})
	if done == controllerutil.OperationResultCreated {
		r.events.Eventf(d, nil, core.EventTypeNormal, "Made", "Make", "its ConfigMap is made")
	}
	return ctrl.Result{}, err
}

// reconcileDevice is what happens to a Device that the controller is for.
func reconcileDevice(ctx context.Context, m ctrl.Manager) error {
	c, err := client.New(m.GetConfig(), client.Options{Scheme: m.GetScheme()})
	if err != nil {
		return err
	}
	lamp := device("lamp")
	lamp.Object["spec"] = map[string]any{"deviceModelRef": map[string]any{"name": "dimmable"}, "protocol": map[string]any{"type": "virtual"}}
	if err := c.Create(ctx, lamp); err != nil {
		return fmt.Errorf("create a Device: %w", err)
	}
	key := client.ObjectKeyFromObject(lamp)
	if err := until(ctx, "the ConfigMap is made", func() (bool, error) {
		owned := &core.ConfigMap{}
		err := c.Get(ctx, key, owned)
		return err == nil && meta.IsControlledBy(owned, lamp), client.IgnoreNotFound(err)
	}); err != nil {
		return err
	}
	if err := until(ctx, "the Event is there", func() (bool, error) {
		list := &core.EventList{}
		err := c.List(ctx, list, client.InNamespace(namespace))
		for i := range list.Items {
			if list.Items[i].Reason == "Made" && list.Items[i].InvolvedObject.Name == "lamp" {
				return true, nil
			}
		}
		return false, err
	}); err != nil {
		return err
	}
	held := &coordination.Lease{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: lease}, held); err != nil {
		return fmt.Errorf("the Lease: %w", err)
	}
	if held.Spec.HolderIdentity == nil || *held.Spec.HolderIdentity == "" {
		return errors.New("the Lease has no holder")
	}
	if err := c.Delete(ctx, lamp); err != nil {
		return fmt.Errorf("delete the Device: %w", err)
	}
	return until(ctx, "Device and ConfigMap are gone", func() (bool, error) {
		for _, o := range []client.Object{device("lamp"), &core.ConfigMap{}} {
			if err := c.Get(ctx, key, o); !apierrors.IsNotFound(err) {
				return false, err
			}
		}
		return true, nil
	})
}

func until(ctx context.Context, what string, is func() (bool, error)) error {
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, func(context.Context) (bool, error) { return is() })
	if err != nil {
		return fmt.Errorf("waiting until %s: %w", what, err)
	}
	return nil
}
