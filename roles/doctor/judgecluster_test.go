package doctor

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"inferencecache.io/inferencecache/api/v1alpha1"
	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
)

const home = "caches"

// signed makes an authority's bundle and a certificate of it for the webhooks.
func signed(t *testing.T, ends time.Time) (bundle []byte, chain []*x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	begin := ends.Add(-90 * 24 * time.Hour)
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotBefore: begin, NotAfter: ends.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: begin, NotAfter: ends, DNSNames: []string{webhookService + "." + home + ".svc"}}
	var raw [2][]byte
	for n, c := range []*x509.Certificate{authority, leaf} {
		if raw[n], err = x509.CreateCertificate(rand.Reader, c, authority, key.Public(), key); err != nil {
			t.Fatal(err)
		}
	}
	shown, err := x509.ParseCertificate(raw[1])
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw[0]}), []*x509.Certificate{shown}
}

func condition(kind string, status metav1.ConditionStatus, reason string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: "because"}
}

func pod(name string, labels, annotations map[string]string) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "t", Name: name, Labels: labels, Annotations: annotations}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
}

// sound is a cluster in which all is well.
func sound(t *testing.T, now time.Time) *inspection {
	t.Helper()
	bundle, chain := signed(t, now.Add(60*24*time.Hour))
	server := func() *evidence {
		e := fine()
		e.engines, e.token = nil, true
		return e
	}
	backend := v1alpha1.CacheBackend{
		ObjectMeta: metav1.ObjectMeta{Namespace: "t", Name: "b", UID: "u"},
		Spec:       v1alpha1.CacheBackendSpec{CacheDomain: "d"},
		Status:     v1alpha1.CacheBackendStatus{MatchedEnginePods: new(int32(1)), Conditions: []metav1.Condition{condition(v1alpha1.ConditionReady, "True", "ConnectorReady")}},
	}
	policy := v1alpha1.CachePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "t", Name: "p", Generation: 3}}
	programmed := condition(v1alpha1.ConditionProgrammed, "True", "ServersProgrammed")
	programmed.ObservedGeneration = 3
	policy.Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionAccepted, "True", "Chosen"), programmed}
	return &inspection{
		objects: objects{
			home: home, servers: []corev1.Pod{pod("s-0", nil, nil), pod("s-1", nil, nil)}, controllers: []corev1.Pod{pod("c-0", nil, nil)},
			backends: []v1alpha1.CacheBackend{backend}, policies: []v1alpha1.CachePolicy{policy},
			tenants: []v1alpha1.CacheTenant{{ObjectMeta: metav1.ObjectMeta{Namespace: "t", Name: "ct"}}},
			engines: []corev1.Pod{pod("r", map[string]string{v1alpha1.LabelCacheDomain: "d"}, map[string]string{v1alpha1.AnnotationInjectedBy: "t/b", v1alpha1.AnnotationInjectedByUID: "u"})},
			hooks:   []hook{{"mpod.inferencecache.io", bundle}}, serving: []handshake{{pod: "c-0", chain: chain}},
		},
		tokens:  tokens{controller: "t", wrong: map[string]answer{"s-0": {status: 401}, "s-1": {status: 401}}},
		servers: map[string]*evidence{"s-0": server(), "s-1": server()},
		engines: fine().engines,
	}
}

func TestJudgeClusterNamesTheCauseAndNothingElse(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	refused := errors.New("connection refused")
	set := func(kind string, status metav1.ConditionStatus, reason string) func(*inspection) {
		return func(i *inspection) {
			b := &i.backends[0]
			b.Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionReady, "False", reason), condition(kind, status, reason)}
		}
	}
	for name, tc := range map[string]struct {
		ail  func(*inspection)
		want []string
	}{
		"sound":           {func(*inspection) {}, nil},
		"may not list":    {func(i *inspection) { i.unread = []error{refused} }, []string{"api-refuses"}},
		"nothing there":   {func(i *inspection) { *i = inspection{} }, []string{"not-installed"}},
		"no server runs":  {func(i *inspection) { i.objects.servers, i.servers = nil, nil }, []string{"server-unreachable"}},
		"a server is off": {func(i *inspection) { i.servers["s-1"] = &evidence{health: answer{err: refused}} }, []string{"server-unreachable"}},
		"one knows less": {func(i *inspection) {
			f := i.servers["s-1"].fleet.Replicas[0]
			f.IndexedBlocks, f.Held = 0, nil
		}, []string{"servers-disagree"}},
		"one knows nothing": {func(i *inspection) { i.servers["s-1"].fleet.Replicas = nil }, []string{"servers-disagree"}},
		"known dead": {func(i *inspection) {
			for _, s := range i.servers {
				s.fleet.Replicas[0].State = pb.ReplicaState_REPLICA_DEAD
			}
			i.servers["s-1"].fleet.Replicas = nil
		}, nil},
		"wrong audience taken": {func(i *inspection) { i.tokens.wrong["s-0"] = answer{status: 200} }, []string{"audience-ignored"}},
		"right token refused":  {func(i *inspection) { i.servers["s-0"].snapshot = answer{status: 403} }, []string{"snapshot-refused"}},
		"no webhooks":          {func(i *inspection) { i.hooks = nil }, []string{"webhook-missing"}},
		"no controller":        {func(i *inspection) { i.controllers = nil }, []string{"webhook-unreachable"}},
		"webhook away":         {func(i *inspection) { i.serving[0] = handshake{pod: "c-0", err: refused} }, []string{"webhook-unreachable"}},
		"bundle of another":    {func(i *inspection) { i.hooks[0].bundle, _ = signed(t, now.Add(30*24*time.Hour)) }, []string{"webhook-untrusted"}},
		"bundle empty":         {func(i *inspection) { i.hooks[0].bundle = nil }, []string{"webhook-untrusted"}},
		"not renewed": {func(i *inspection) {
			i.hooks[0].bundle, i.serving[0].chain = signed(t, now.Add(time.Hour))
		}, []string{"webhook-certificate-expires"}},
		"self-test": {func(i *inspection) {
			i.indices = []v1alpha1.CacheIndex{{Status: v1alpha1.CacheIndexStatus{Conditions: []metav1.Condition{condition(v1alpha1.ConditionSelfTest, "False", "Failed")}}}}
		}, []string{"self-test-failed"}},
		"no way to a server": {func(i *inspection) {
			i.indices = []v1alpha1.CacheIndex{{Status: v1alpha1.CacheIndexStatus{Conditions: []metav1.Condition{
				condition(v1alpha1.ConditionSnapshotsRead, "False", "Failed"), condition(v1alpha1.ConditionPolicyPushed, "False", "Failed"), condition(v1alpha1.ConditionSelfTest, "False", "Failed"),
			}}}}
			i.policies[0].Generation = 4
		}, []string{"snapshots-unread"}},
		"policies refused": {func(i *inspection) {
			i.indices = []v1alpha1.CacheIndex{{Status: v1alpha1.CacheIndexStatus{Conditions: []metav1.Condition{condition(v1alpha1.ConditionPolicyPushed, "False", "Failed")}}}}
			i.policies[0].Generation = 4
		}, []string{"policies-unpushed"}},
		"not ready":     {func(i *inspection) { i.backends[0].Status.Conditions[0].Status = "False" }, []string{"backend-not-ready"}},
		"never judged":  {func(i *inspection) { i.backends[0].Status = v1alpha1.CacheBackendStatus{} }, []string{"backend-not-ready"}},
		"no pods":       {func(i *inspection) { *i.backends[0].Status.MatchedEnginePods = 0; i.objects.engines = nil }, []string{"no-engine-pods"}},
		"silent":        {set(v1alpha1.ConditionEventsFresh, "False", v1alpha1.ReasonEventsStale), []string{"events-stale"}},
		"never heard":   {set(v1alpha1.ConditionEventsFresh, "False", v1alpha1.ReasonNoEventsObserved), []string{"events-never"}},
		"redis away":    {set(v1alpha1.ConditionRemoteStorageReady, "False", v1alpha1.ReasonRemoteUnreachable), []string{"remote-storage-down"}},
		"kernels":       {set(v1alpha1.ConditionKernelsHealthy, "False", v1alpha1.ReasonKernelLoadFail), []string{"kernels-broken"}},
		"crash loop":    {set(v1alpha1.ConditionEngineCompatibility, "False", v1alpha1.ReasonEngineCrashLoop), []string{"engine-crash-looping"}},
		"host tier":     {set(v1alpha1.ConditionT2Degraded, "True", v1alpha1.ReasonT2ZeroHitRate), []string{"host-tier-serves-nothing"}},
		"being deleted": {func(i *inspection) { i.backends[0].DeletionTimestamp = &metav1.Time{Time: now} }, nil},
		"pod unwired":   {func(i *inspection) { i.objects.engines[0].Annotations = nil }, []string{"pods-unwired"}},
		"pod opted out": {func(i *inspection) {
			i.objects.engines[0].Annotations = map[string]string{v1alpha1.AnnotationSkipInject: "true", v1alpha1.AnnotationInjectSkipped: v1alpha1.SkipAnnotation}
		}, nil},
		"pod over": {func(i *inspection) {
			i.objects.engines[0].Annotations, i.objects.engines[0].Status.Phase = nil, corev1.PodFailed
		}, nil},
		"events by others": {func(i *inspection) {
			i.objects.engines[0].Annotations = nil
			i.backends[0].Spec.Integration.Mode, i.backends[0].Spec.Integration.KVEvents = v1alpha1.ModeEventsOnly, v1alpha1.KVEventsExternal
		}, nil},
		"domain unknown": {func(i *inspection) { i.objects.engines[0].Labels[v1alpha1.LabelCacheDomain] = "x" }, []string{"no-backend"}},
		"shadowed":       {func(i *inspection) { i.policies[0].Status.Conditions[0].Status = "False" }, []string{"policy-shadowed"}},
		"older policy":   {func(i *inspection) { i.policies[0].Generation = 4 }, []string{"policy-unprogrammed"}},
		"over quota": {func(i *inspection) {
			i.tenants[0].Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionQuotaExceeded, "True", "OverEntryBudget")}
		}, []string{"quota-exceeded"}},
		"not granted": {func(i *inspection) {
			i.tenants[0].Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionReady, "False", "TenantNotGranted")}
		}, []string{"tenant-not-effective"}},
		"subscriber away": {func(i *inspection) { i.engines[0] = engine{silent: refused} }, []string{"subscriber-silent"}},
		"no token":        {func(i *inspection) { i.tokens = tokens{err: refused} }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := sound(t, now)
			for _, s := range i.servers {
				s.fleet.Replicas[0].State = pb.ReplicaState_REPLICA_ALIVE
			}
			tc.ail(i)
			var got []string
			for _, f := range judgeCluster(i, now) {
				if f.Status >= Warn {
					got = append(got, f.ID)
				}
			}
			slices.Sort(got)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestManyPodsAreNotAllNamed(t *testing.T) {
	t.Parallel()
	if got, want := some([]string{"1", "2", "3", "4", "5", "6", "7"}), "1; 2; 3; 4; 5; and 2 more"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
