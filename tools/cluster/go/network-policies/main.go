// Network-policies enforces the NetworkPolicies of one node.
//
// iptables hands it the first packet of every connection from or to a pod (target NFQUEUE); it
// answers whether the connection may be. The decisions are kube-network-policies' own; its data
// plane is not used, because it needs an nftables expression that many kernels are built without.
package main

import (
	"context"
	"flag"
	"log"
	"net/http"
	"os/signal"
	"syscall"
	"time"

	"github.com/florianl/go-nfqueue/v2"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/kube-network-policies/pkg/api"
	"sigs.k8s.io/kube-network-policies/pkg/network"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
	"sigs.k8s.io/kube-network-policies/pkg/podinfo"
)

const headers = 128 // bytes of a packet that are looked at

func main() {
	kubeconfig := flag.String("kubeconfig", "", "way to the API server")
	node := flag.String("node", "", "name of the node")
	queue := flag.Uint("queue", 0, "number of the NFQUEUE")
	health := flag.String("health", "", "address that answers once policies are enforced")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	engine, err := newEngine(ctx, *kubeconfig, *node)
	if err != nil {
		log.Fatal(err)
	}
	for !engine.Ready() {
		time.Sleep(20 * time.Millisecond)
	}
	if err := judge(ctx, engine, uint16(*queue)); err != nil {
		log.Fatal(err)
	}
	go func() {
		log.Fatal(http.ListenAndServe(*health, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	}()
	<-ctx.Done()
}

// newEngine follows pods, namespaces and policies, and decides by them.
func newEngine(ctx context.Context, kubeconfig, node string) (*networkpolicy.PolicyEngine, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	pods, namespaces := factory.Core().V1().Pods(), factory.Core().V1().Namespaces()
	resolver, err := podinfo.NewInformerResolver(pods.Informer())
	if err != nil {
		return nil, err
	}
	policies := networkpolicy.NewStandardNetworkPolicy(
		node, namespaces, pods, factory.Networking().V1().NetworkPolicies())
	provider := podinfo.NewInformerProvider(
		pods, namespaces, nil, []podinfo.IPResolver{resolver})
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return networkpolicy.NewPolicyEngine(provider, []api.PolicyEvaluator{policies}), nil
}

// judge answers for every packet of the queue, in the background, until ctx is done.
func judge(ctx context.Context, engine *networkpolicy.PolicyEngine, number uint16) error {
	queue, err := nfqueue.Open(&nfqueue.Config{
		NfQueue:      number,
		Flags:        nfqueue.NfQaCfgFlagGSO,
		MaxPacketLen: headers,
		MaxQueueLen:  1024,
		Copymode:     nfqueue.NfQnlCopyPacket,
		WriteTimeout: 100 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	answer := func(packet nfqueue.Attribute) int {
		verdict := nfqueue.NfDrop
		if isAllowed(ctx, engine, *packet.Payload) {
			verdict = nfqueue.NfAccept
		}
		if err := queue.SetVerdict(*packet.PacketID, verdict); err != nil {
			log.Print(err)
		}
		return 0
	}
	// Reading goes on after an error: a queue that nobody reads would stop every connection.
	return queue.RegisterWithErrorFunc(ctx, answer, func(error) int { return 0 })
}

func isAllowed(ctx context.Context, engine *networkpolicy.PolicyEngine, bytes []byte) bool {
	packet, err := network.ParsePacket(bytes)
	if err != nil {
		return true // neither TCP, UDP nor SCTP, of which alone policies speak
	}
	allowed, err := engine.EvaluatePacket(ctx, &packet)
	if err != nil {
		log.Print(err)
	}
	return allowed && err == nil
}
