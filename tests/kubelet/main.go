// A kubelet for tests: the streaming server and the handlers of upstream's kubelet, over TLS, with
// commands of this machine in the place of containers.
//
//	kubelet --cert FILE --key FILE --client-ca FILE [--spdy-only]
//
// It prints its address, and then nothing. Logs have a line that says what was requested, and one a
// client has to wait for; a followed log ends with its client. Every other path is answered with the
// request as the kubelet saw it. With --spdy-only it is a kubelet of before ExtendWebSocketsToKubelet.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"

	"k8s.io/apimachinery/pkg/util/proxy"
	translator "k8s.io/apiserver/pkg/util/proxy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"
	utilexec "k8s.io/utils/exec"
)

// machine runs what a container would run.
type machine struct{}

func (machine) Exec(ctx context.Context, _ string, words []string, in io.Reader, out, failures io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	command := exec.CommandContext(ctx, words[0], words[1:]...)
	command.Stdout = out
	if failures != nil {
		command.Stderr = failures
	}
	if in == nil {
		return code(command.Run())
	}
	// Not command.Stdin, which would wait for the end of the client's input.
	input, err := command.StdinPipe()
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(input, in)
		_ = input.Close()
	}()
	return code(command.Run())
}

// code returns the error of a command in the form from which clients read its exit code.
func code(err error) error {
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return utilexec.CodeExitError{Err: err, Code: failed.ExitCode()}
	}
	return err
}

func (machine) Attach(_ context.Context, container string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	fmt.Fprintf(out, "attached to %s\n", container)
	if in == nil {
		return nil
	}
	_, err := io.Copy(out, in)
	return err
}

func (machine) PortForward(_ context.Context, _ string, port int32, stream io.ReadWriteCloser) error {
	server, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, stream)
		_ = server.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(stream, server)
	return err
}

type kubelet struct {
	streams  streaming.Server
	base     *url.URL
	spdyOnly bool
}

func (k *kubelet) Error(w http.ResponseWriter, _ *http.Request, err error) {
	http.Error(w, err.Error(), http.StatusInternalServerError)
}

// forward passes a stream to the streaming server, as the handlers of a kubelet do.
func (k *kubelet) forward(w http.ResponseWriter, r *http.Request, to string, options *remotecommand.Options) {
	location, err := url.Parse(to)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	var handler http.Handler = proxy.NewUpgradeAwareHandler(location, nil, false, true, k)
	switch {
	case k.spdyOnly:
	case options == nil && wsstream.IsWebSocketRequestWithTunnelingProtocol(r):
		handler = translator.NewTunnelingHandler(handler)
	case options != nil && wsstream.IsWebSocketRequestWithStreamCloseProtocol(r):
		handler = translator.NewStreamTranslatorHandler(location, nil, 0, translator.Options{
			Stdin: options.Stdin, Stdout: options.Stdout, Stderr: options.Stderr, Tty: options.TTY,
		})
	}
	handler.ServeHTTP(w, r)
}

func (k *kubelet) stream(w http.ResponseWriter, r *http.Request, parts []string) {
	container := strings.Join(parts[1:], "/")
	if parts[0] == "portForward" {
		options := &portforward.V4Options{}
		var err error
		if !wsstream.IsWebSocketRequestWithTunnelingProtocol(r) {
			options, err = portforward.NewV4Options(r)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		made, err := k.streams.GetPortForward(&runtimeapi.PortForwardRequest{PodSandboxId: container, Port: options.Ports})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		k.forward(w, r, made.Url, nil)
		return
	}
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if parts[0] == "attach" {
		made, err := k.streams.GetAttach(&runtimeapi.AttachRequest{
			ContainerId: container, Stdin: options.Stdin, Stdout: options.Stdout, Stderr: options.Stderr, Tty: options.TTY,
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		k.forward(w, r, made.Url, options)
		return
	}
	made, err := k.streams.GetExec(&runtimeapi.ExecRequest{
		ContainerId: container, Cmd: r.URL.Query()["command"],
		Stdin: options.Stdin, Stdout: options.Stdout, Stderr: options.Stderr, Tty: options.TTY,
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	k.forward(w, r, made.Url, options)
}

func (k *kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch parts[0] {
	case "containerLogs":
		if parts[len(parts)-1] == "gone" {
			http.Error(w, "the container is gone", http.StatusNotFound)
			return
		}
		fmt.Fprintf(w, "log of %s %s\n", r.URL.Path, r.URL.RawQuery)
		w.(http.Flusher).Flush()
		if r.URL.Query().Get("follow") == "true" {
			<-r.Context().Done()
		}
	case "exec", "attach", "portForward":
		k.stream(w, r, parts)
	case "hang":
		<-r.Context().Done()
	case "moved":
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	default:
		body, _ := io.ReadAll(r.Body)
		who := "nobody"
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
			who = r.TLS.PeerCertificates[0].Subject.String()
		}
		fmt.Fprintf(w, "%s %s by %s, authorization %q, body %q\n", r.Method, r.URL, who, r.Header.Get("Authorization"), body)
	}
}

func main() {
	cert := flag.String("cert", "", "the serving certificate")
	key := flag.String("key", "", "its key")
	clientCA := flag.String("client-ca", "", "the CA of clients")
	spdyOnly := flag.Bool("spdy-only", false, "know no WebSockets of version 5")
	flag.Parse()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	config := streaming.DefaultConfig
	config.Addr = inner.Addr().String()
	config.BaseURL = &url.URL{Scheme: "http", Host: config.Addr, Path: "/cri/"}
	streams, err := streaming.NewServer(config, machine{})
	if err != nil {
		log.Fatal(err)
	}
	go func() { log.Fatal(http.Serve(inner, streams)) }()
	pem, err := os.ReadFile(*clientCA)
	if err != nil {
		log.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	own, err := tls.LoadX509KeyPair(*cert, *key)
	if err != nil {
		log.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{own}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		NextProtos: []string{"http/1.1"},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr())
	log.Fatal(http.Serve(listener, &kubelet{streams: streams, base: config.BaseURL, spdyOnly: *spdyOnly}))
}
