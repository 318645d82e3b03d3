import{a,b}from"./chunk-CUNHLH66.js";import"./chunk-3CT5HANP.js";import"./chunk-43NQ5MWF.js";export{b as AllEvents,a as Events};
