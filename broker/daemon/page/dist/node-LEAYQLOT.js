import{a,b,c}from"./chunk-H62HGS6N.js";import"./chunk-CUNHLH66.js";import"./chunk-3CT5HANP.js";import"./chunk-43NQ5MWF.js";export{b as FindingList,c as Node,a as findings};
