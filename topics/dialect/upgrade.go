package dialect

import "github.com/edgebus/edgebus/topics/resource"

// upgrade.kubeedge.io/v1alpha2: the status is a list, an entry a node.

type upgradeV1alpha2 struct {
	Spec   resource.UpgradeSpec   `json:"spec"`
	Status []resource.UpgradeNode `json:"status,omitempty"`
}

func upgradeV1alpha2Kinds() []Kind {
	k := Kind{
		Group: "upgrade.kubeedge.io", Version: "v1alpha2", Name: "Upgrade", Plural: "upgrades", Singular: "upgrade",
		Canonical: resource.KindUpgrade,
	}
	return []Kind{k.pair(between(
		func(f upgradeV1alpha2) (u resource.Upgrade, err error) {
			u.Spec, u.Status.Nodes = f.Spec, f.Status
			return u, nil
		},
		func(u resource.Upgrade) upgradeV1alpha2 { return upgradeV1alpha2{u.Spec, u.Status.Nodes} },
	))}
}
